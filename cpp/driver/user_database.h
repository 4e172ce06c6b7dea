// What the host's database of users and groups says. It may be a server elsewhere, and take seconds: it is asked on
// threads of its own, once a minute for each user, and nobody who polls waits for it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"

namespace rrpc::driver {

enum class Knowledge : uint8_t {
  kNone,   // it hasn't answered yet
  kOld,    // it answered more than a minute ago, or before ask_anew()
  kFresh,  // it has answered, be it that there is no such user
};
// Has it asked about the user, unless that is fresh. Where it is kNone, `then` is called once by another thread when
// the answer has come, unless too many wait already or nobody can be asked: so look again now and then.
Knowledge ask_about(uid_t uid, std::function<void()> then = {});
// By its last answer. Empty and false where there is none, or no such user.
std::string user_name(uid_t uid);
// Whether the group is the user's primary one, or lists the user.
bool user_in_group(uid_t uid, gid_t gid);

// Waits for an answer about the user where there is none: not for threads that poll.
void wait_for_user(uid_t uid);
// Has it asked anew about everybody who is known, and waits for the answers, no longer than `patience`.
void ask_anew(TimeNs patience);

// Stands in for the host's in tests; an empty function gives way to the host's again.
struct UserEntry {
  std::string name;
  std::vector<gid_t> groups;
};
void set_user_database(std::function<UserEntry(uid_t)> look_up);

}  // namespace rrpc::driver
