// A server's policy, which may change while it serves, and what each connection has learned of it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "driver/policy.h"
#include "provider/identity.h"

namespace rrpc::driver {

// What the policy says of the methods that one connection has called. The connection's mutex guards it.
class Verdicts {
 public:
  size_t size() const { return verdicts_.size(); }

 private:
  friend class Authorization;
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;  // NOLINT(readability-identifier-naming): the standard calls it so
  };
  uint64_t version_ = 0;
  struct Verdict {
    std::string why_not;  // empty: it isn't refused
    TimeNs until = kNever;
  };
  // By method.
  std::unordered_map<std::string, Verdict, Hash, std::equal_to<>> verdicts_;
};

// Without a line in the log.
Status why_client_refused(const provider::PeerIdentity& client);

class Authorization {
 public:
  // Then the database of users may say something else.
  static constexpr TimeNs kRefusalRemembered = 60 * kSecond;
  // A verdict by what the database said earlier, while it is asked again.
  static constexpr TimeNs kOldRemembered = kSecond;

  // For calls that come from now on. Null: anybody may call anything. Waits for the database of users, some seconds at
  // most, so that nobody is let in by what it said before: not for threads that poll.
  void set(std::shared_ptr<const Policy> policy);
  bool has_policy() const { return version_.load(std::memory_order_acquire) != 0; }
  // Whether what its policy says of a process may depend on the database of users.
  bool asks_for_groups() {
    uint64_t version = 0;
    const auto rules = policy(version);
    return rules != nullptr && rules->asks_for_groups();
  }
  // PermissionDenied where the caller may not call the method, Unavailable where the database of users hasn't said yet
  // who that is. It is decided once for each method of a connection and each policy, a refusal once a minute. `method`
  // is empty where it isn't known yet. `caller`: gives the identity.
  template <typename Caller>
  Status check(Verdicts& known, std::string_view method, const Caller& caller) {
    const uint64_t version = version_.load(std::memory_order_acquire);
    if (version == 0) return {};
    if (known.version_ == version) {
      const auto found = known.verdicts_.find(method);
      if (found != known.verdicts_.end() && (found->second.until == kNever || now_ns() < found->second.until))
        return found->second.why_not.empty() ? Status() : refuse(found->second.why_not);
    }
    return decide(known, method, caller());
  }
  // PermissionDenied for a client that no principal of Options::clients matches. It is logged.
  Status refuse_client(const provider::PeerIdentity& client);
  // For interceptors, once they know the token's subject: why the call is refused; empty where it isn't.
  std::string why_not(std::string_view method, const provider::PeerIdentity& caller, std::string_view token);
  // Calls back once, at the next refusal that is worth a line in a log, maybe under the mutex of a connection: repeated
  // refusals of what is remembered aren't.
  void on_denials(std::function<void()> tell);
  // The texts of those since the last time, up to a bound.
  std::vector<std::string> take_denials();

 private:
  void note(const std::string& why);
  std::shared_ptr<const Policy> policy(uint64_t& version);
  Status decide(Verdicts& known, std::string_view method, const provider::PeerIdentity& caller);
  static Status refuse(const std::string& why);

  std::mutex mutex_;
  std::shared_ptr<const Policy> policy_;
  uint64_t last_version_ = 0;
  std::function<void()> tell_;
  std::vector<std::string> denials_;
  TimeNs minute_began_ = 0;
  size_t noted_ = 0;  // in this minute
  size_t left_out_ = 0;
  std::atomic<uint64_t> version_{0};  // 0: there is no policy
};

}  // namespace rrpc::driver
