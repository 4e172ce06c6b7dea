#include "driver/user_database.h"

#include <grp.h>
#include <pthread.h>
#include <pwd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/detached_thread.h"
#include "base/of_process.h"

namespace rrpc::driver {
namespace {

constexpr size_t kEntryBytes = 16384;  // at most
constexpr TimeNs kRemembered = 60 * kSecond;
constexpr size_t kUsersMax = 1024;
constexpr size_t kAskedMax = 1024;  // users that wait for the database
constexpr size_t kToldMax = 64;     // for each of them
constexpr TimeNs kFailureRemembered = kSecond;
constexpr size_t kThreadsMax = 4;  // that ask: one user for whom it takes long doesn't hold up all others
constexpr int kGroupsMax = 65536;  // as many as Linux lets a process have

std::vector<gid_t> look_up_groups(const std::string& name, gid_t primary) {
  std::vector<gid_t> groups(64);
  auto count = static_cast<int>(groups.size());
  while (getgrouplist(name.c_str(), primary, groups.data(), &count) < 0) {
    if (count <= static_cast<int>(groups.size()) || count > kGroupsMax) return {};
    groups.resize(static_cast<size_t>(count));
  }
  groups.resize(static_cast<size_t>(count));
  return groups;
}

// Nothing: this process couldn't ask. Other errors mean that there is no such user, or one who can't be read.
std::optional<UserEntry> look_up(uid_t uid) {
  std::vector<char> memory(kEntryBytes);
  passwd entry{};
  passwd* found = nullptr;
  const int error = getpwuid_r(uid, &entry, memory.data(), memory.size(), &found);
  if (error == EINTR || error == EIO || error == EMFILE || error == ENFILE || error == ENOMEM) return std::nullopt;
  if (error != 0 || found == nullptr) return UserEntry();
  return UserEntry{found->pw_name, look_up_groups(found->pw_name, found->pw_gid)};
}

class Users {
 public:
  Knowledge ask_about(uid_t uid, std::function<void()> then) {
    std::lock_guard lock(mutex_);
    const auto found = known_.find(uid);
    const bool known = found != known_.end();
    if (known && now_ns() < found->second.until) return Knowledge::kFresh;
    const bool asked = ask(uid);
    if (known) return Knowledge::kOld;
    if (!asked || !then) return Knowledge::kNone;
    auto& told = asked_[uid];
    if (told.size() < kToldMax) told.push_back(std::move(then));
    return Knowledge::kNone;
  }

  template <typename Read>
  auto read(uid_t uid, const Read& read) {
    std::lock_guard lock(mutex_);
    const auto found = known_.find(uid);
    return read(found == known_.end() ? UserEntry() : found->second.entry);
  }

  void wait_for(uid_t uid) {
    {
      std::lock_guard lock(mutex_);
      if (known_.contains(uid)) return;
    }
    answer(uid);
  }

  void ask_anew(TimeNs patience) {
    std::unique_lock lock(mutex_);
    ++generation_;
    std::vector<uid_t> all;
    for (auto& [uid, user] : known_) {
      user.until = 0;
      if (ask(uid)) all.push_back(uid);
    }
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::nanoseconds(patience);
    answered_.wait_until(lock, deadline,
                         [&] { return std::ranges::none_of(all, [this](uid_t uid) { return asked_.contains(uid); }); });
  }

  void set_database(std::function<UserEntry(uid_t)> database) {
    std::lock_guard lock(mutex_);
    known_.clear();
    database_ = std::move(database);
  }

 private:
  struct User {
    UserEntry entry;
    TimeNs until = 0;
  };

  // With the mutex. False: too many wait already, or no thread is to be had.
  bool ask(uid_t uid) {
    if (asked_.contains(uid)) return true;
    if (asked_.size() >= kAskedMax) return false;
    if (threads_ < kThreadsMax) {  // those that run have a user each
      if (start_detached([this] { run(); }))
        ++threads_;
      else if (threads_ == 0)
        return false;
    }
    waiting_.push_back(uid);
    asked_.try_emplace(uid);
    return true;
  }

  void run() {
    pthread_setname_np(pthread_self(), "rrpc-users");
    std::unique_lock lock(mutex_);
    while (!waiting_.empty()) {
      const uid_t uid = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      try {
        answer(uid);
      } catch (const std::bad_alloc&) {
        forget_question(uid);
      }
      lock.lock();
    }
    --threads_;
  }

  // Whoever waits looks again by itself.
  void forget_question(uid_t uid) {
    std::lock_guard lock(mutex_);
    asked_.erase(uid);
    answered_.notify_all();
  }

  void answer(uid_t uid) {
    std::unique_lock lock(mutex_);
    const auto database = database_;
    const uint64_t generation = generation_;
    lock.unlock();
    std::optional<UserEntry> entry = database ? database(uid) : look_up(uid);
    lock.lock();
    const bool outdated = generation != generation_;
    if (entry)
      remember(uid, {std::move(*entry), outdated ? 0 : now_ns() + kRemembered});
    else if (const auto old = known_.find(uid); old != known_.end())
      old->second.until = now_ns() + kFailureRemembered;
    if (outdated && asked_.contains(uid)) return waiting_.push_back(uid);  // asked anew meanwhile
    std::vector<std::function<void()>> tell;
    if (const auto asked = asked_.extract(uid); !asked.empty()) tell = std::move(asked.mapped());
    answered_.notify_all();
    lock.unlock();
    for (const auto& one : tell) one();
  }

  void remember(uid_t uid, User user) {
    if (known_.size() >= kUsersMax && !known_.contains(uid))
      known_.erase(std::ranges::min_element(known_, {}, [](const auto& one) { return one.second.until; }));
    known_[uid] = std::move(user);
  }

  std::mutex mutex_;  // not held while the database is asked
  std::condition_variable answered_;
  std::function<UserEntry(uid_t)> database_;  // empty: the host's
  std::unordered_map<uid_t, User> known_;
  std::unordered_map<uid_t, std::vector<std::function<void()>>> asked_;  // whom to tell
  std::deque<uid_t> waiting_;                                            // of those, for a thread
  size_t threads_ = 0;
  uint64_t generation_ = 0;  // of the answers: those begun before ask_anew() are old
};

Users& users() { return of_process<Users>(); }

}  // namespace

Knowledge ask_about(uid_t uid, std::function<void()> then) { return users().ask_about(uid, std::move(then)); }

std::string user_name(uid_t uid) {
  return users().read(uid, [](const UserEntry& user) { return user.name; });
}

bool user_in_group(uid_t uid, gid_t gid) {
  return users().read(
      uid, [gid](const UserEntry& user) { return std::ranges::find(user.groups, gid) != user.groups.end(); });
}

void wait_for_user(uid_t uid) { users().wait_for(uid); }
void ask_anew(TimeNs patience) { users().ask_anew(patience); }
void set_user_database(std::function<UserEntry(uid_t)> look_up) { users().set_database(std::move(look_up)); }

}  // namespace rrpc::driver
