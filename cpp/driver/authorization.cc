#include "driver/authorization.h"

#include <optional>
#include <utility>

#include "driver/user_database.h"
#include "endpoint/counters.h"

namespace rrpc::driver {
namespace {

// A caller may name methods that don't exist, each another one.
constexpr size_t kMethodsRemembered = 256;
constexpr size_t kRememberedNameMax = 256;
constexpr size_t kShownMax = 80;
constexpr size_t kNotedMax = 64;
constexpr TimeNs kPatience = 5 * kSecond;
constexpr size_t kNotedInMinuteMax = 60;  // of all callers, who may have a name for each

std::string why_refused(std::string_view method, const std::string& caller) {
  std::string shown(method.substr(0, kShownMax));
  for (char& c : shown)
    if (c < ' ' || c > '~') c = '?';
  return (method.empty() ? "nothing here may be called by " : shown + "() may not be called by ") + caller;
}

}  // namespace

void Authorization::set(std::shared_ptr<const Policy> policy) {
  if (policy != nullptr) ask_anew(kPatience);
  std::lock_guard lock(mutex_);
  policy_ = std::move(policy);
  version_.store(policy_ == nullptr ? 0 : ++last_version_, std::memory_order_release);
}

std::shared_ptr<const Policy> Authorization::policy(uint64_t& version) {
  std::lock_guard lock(mutex_);
  version = version_.load(std::memory_order_relaxed);
  return policy_;
}

void Authorization::on_denials(std::function<void()> tell) {
  std::lock_guard lock(mutex_);
  tell_ = std::move(tell);
}

std::vector<std::string> Authorization::take_denials() {
  std::lock_guard lock(mutex_);
  return std::exchange(denials_, {});
}

void Authorization::note(const std::string& why) {
  std::function<void()> tell;
  {
    std::lock_guard lock(mutex_);
    const TimeNs now = now_ns();
    if (now - minute_began_ >= 60 * kSecond) {
      if (left_out_ > 0) denials_.push_back(std::to_string(left_out_) + " refusals more weren't logged");
      minute_began_ = now;
      noted_ = left_out_ = 0;
    }
    if (noted_ == kNotedInMinuteMax) {
      ++left_out_;
      return;
    }
    ++noted_;
    if (denials_.size() < kNotedMax) denials_.push_back(why);
    tell = std::exchange(tell_, nullptr);
  }
  if (tell) tell();
}

Status Authorization::refuse(const std::string& why) {
  endpoint::count(endpoint::counters().calls_denied);
  return {StatusCode::kPermissionDenied, why};
}

Status Authorization::decide(Verdicts& known, std::string_view method, const provider::PeerIdentity& caller) {
  uint64_t version = 0;
  const std::shared_ptr<const Policy> rules = policy(version);
  if (rules == nullptr) return {};
  if (known.version_ != version || known.verdicts_.size() >= kMethodsRemembered) known.verdicts_.clear();
  known.version_ = version;
  Knowledge user = Knowledge::kFresh;
  if (caller.process) user = ask_about(caller.process->uid);  // errors name it
  if (!rules->asks_for_groups()) user = Knowledge::kFresh;
  const bool refused = method.empty() ? !rules->lets_in(caller) : rules->decide(method, caller) == Verdict::kRefused;
  if (refused && user == Knowledge::kNone)
    return unavailable("the server's database of users and groups hasn't said yet who " + describe(caller) + " is");
  const std::string why = refused ? why_refused(method, describe(caller)) : std::string();
  if (method.size() <= kRememberedNameMax) {
    TimeNs until = refused ? now_ns() + kRefusalRemembered : kNever;
    if (user == Knowledge::kOld) until = now_ns() + kOldRemembered;
    known.verdicts_.insert_or_assign(std::string(method), Verdicts::Verdict{why, until});
    if (refused) note(why);
  }
  return refused ? refuse(why) : Status();
}

Status why_client_refused(const provider::PeerIdentity& client) {
  return {StatusCode::kPermissionDenied, "allow_clients: the server takes no connection of " + describe(client)};
}

Status Authorization::refuse_client(const provider::PeerIdentity& client) {
  Status why = why_client_refused(client);
  note(why.message());
  return why;
}

std::string Authorization::why_not(std::string_view method, const provider::PeerIdentity& caller,
                                   std::string_view token) {
  uint64_t version = 0;
  const std::shared_ptr<const Policy> rules = policy(version);
  if (rules == nullptr) return "";
  if (caller.process && rules->asks_for_groups()) wait_for_user(caller.process->uid);
  if (rules->decide(method, caller, token) == Verdict::kAllowed) return "";
  endpoint::count(endpoint::counters().calls_denied);
  return why_refused(method, describe(caller));
}

}  // namespace rrpc::driver
