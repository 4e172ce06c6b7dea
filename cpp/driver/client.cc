#include "driver/client.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "driver/spinner.h"

namespace rrpc::driver {
namespace {

constexpr TimeNs kFollowerNap = 50 * kMillisecond;
constexpr TimeNs kBusySlice = 50 * kMillisecond;
constexpr std::string_view kOnAdapter = " on ";  // in the description of a verbs peer
const std::atomic<bool> kNoInterrupt{false};

std::mutex g_engine_mutex;
// Never deleted: connections that outlive the interpreter may still name it.
std::shared_ptr<Engine>& g_engine = *new std::shared_ptr<Engine>;

}  // namespace

Engine& client_engine() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] {
    new (&g_engine_mutex) std::mutex();
    new (&g_engine) std::shared_ptr<Engine>();  // its thread stayed with the parent
  });
  (void)registered;
  std::lock_guard lock(g_engine_mutex);
  if (g_engine == nullptr) g_engine = std::make_shared<Engine>();
  return *g_engine;
}

void end_client_engine() {
  std::shared_ptr<Engine> engine;
  {
    std::lock_guard lock(g_engine_mutex);
    engine = g_engine;
  }
  if (engine != nullptr) engine->stop();
}

Client::Client(Address address, ConnectionRef connection, std::string transport)
    : engine_(client_engine()),
      address_(std::move(address)),
      transport_(std::move(transport)),
      connection_(std::move(connection)) {}

Client::~Client() { close(); }

void Client::close() {
  if (belongs_to_parent()) return;
  {
    std::lock_guard lock(connection_->mutex);
    connection_->session().close(unavailable("the client closed the connection"));
  }
  engine_.see_off(connection_);
}

Status Client::check_usable() const {
  if (belongs_to_parent())
    return failed_precondition("this connection belongs to the parent process; connect again after fork");
  return {};
}

Status Client::start(const rpc::ClientCallRef& call, rpc::CallRequest request) {
  RRPC_RETURN_IF_ERROR(check_usable());
  std::lock_guard lock(connection_->mutex);
  const TimeNs now = now_ns();
  RRPC_RETURN_IF_ERROR(connection_->session().client().start(call, std::move(request), now));
  engine_.note_deadline(call->deadline());  // there may never be anybody who waits for it
  engine_.settle(connection_, now);
  return {};
}

Status Client::start_in_loop(const std::shared_ptr<LoopCall>& call, rpc::CallRequest request) {
  RRPC_RETURN_IF_ERROR(start(call, std::move(request)));
  call->queue().await(*call, connection_, engine_.shared_from_this());
  return {};
}

bool Client::cancel(const rpc::ClientCallRef& call, Status why) {
  if (belongs_to_parent()) return false;
  std::lock_guard lock(connection_->mutex);
  if (call->done()) return false;
  connection_->session().client().cancel(call, std::move(why));
  engine_.settle(connection_, now_ns());
  return true;
}

void Client::on_done(const rpc::ClientCallRef& call, std::function<void()> callback) {
  {
    std::lock_guard lock(connection_->mutex);
    if (!call->done()) {
      call->on_done = std::move(callback);
      return;
    }
  }
  callback();
}

void Client::on_unusable(std::function<void()> callback) {
  {
    std::lock_guard lock(connection_->mutex);
    if (usable()) {
      connection_->on_unusable.push_back(std::move(callback));
      return;
    }
  }
  callback();
}

WaitResult Client::wait(const rpc::ClientCallRef& call, TimeNs deadline, const std::atomic<bool>& interrupt) {
  if (call->done()) return WaitResult::kDone;
  if (belongs_to_parent()) return WaitResult::kTimeout;
  const WaitResult result =
      wait_until([&call] { return call->done(); }, call.get(), std::min(deadline, call->deadline()), interrupt);
  if (result != WaitResult::kTimeout || now_ns() < call->deadline()) return result;
  cancel(call, call->deadline_passed());
  return WaitResult::kDone;
}

void Client::wait_for_handshake(TimeNs deadline) {
  const auto settled = [this] { return connection_->closed.load() || connection_->ready.load(); };
  while (wait_until(settled, nullptr, deadline, kNoInterrupt) == WaitResult::kInterrupted) {
  }
}

template <typename Predicate>
WaitResult Client::wait_until(Predicate done, rpc::ClientCall* call, TimeNs deadline,
                              const std::atomic<bool>& interrupt) {
  Connection& connection = *connection_;
  TimeNs now = now_ns();
  const TimeNs slice_end = now + kBusySlice;
  const TimeNs spin_until = deadline_after(now, connection.options().spin_ns());
  const bool may_spin = spin_until > now;
  const bool may_sleep = spin_until != kNever;
  Spinner spinner;
  while (true) {
    size_t handled = 0;
    if (std::unique_lock lock(connection.mutex, std::try_to_lock); lock) {
      handled = connection.session().progress(now);
      if (handled > 0) connection.last_active.store(now, std::memory_order_relaxed);
      if (done()) {
        engine_.settle(connection_, now);
        return WaitResult::kDone;
      }
    } else if (done()) {
      return WaitResult::kDone;  // whoever has the mutex has polled since and settles
    }
    if (handled > 0)
      spinner.found_something();
    else if (may_spin && !spinner.pause())
      continue;
    now = now_ns();
    if (now >= deadline || now >= slice_end || interrupt.load(std::memory_order_relaxed)) break;
    if (now >= spin_until || (may_sleep && Spinner::crowded(now))) break;
  }
  {
    std::lock_guard lock(connection.mutex);
    engine_.settle(connection_, now);
    if (done()) return WaitResult::kDone;
    if (now >= deadline) return WaitResult::kTimeout;
    if (now >= slice_end || interrupt.load(std::memory_order_relaxed)) return WaitResult::kInterrupted;
    if (call != nullptr) call->watched = true;  // under the mutex: whoever ends the call sees it
  }
  std::unique_lock wait_lock(connection.wait_mutex);
  if (connection.has_leader) return sleep_as_follower(done, deadline, wait_lock);
  connection.has_leader = true;
  wait_lock.unlock();
  const WaitResult result = sleep_as_leader(done, deadline, interrupt);
  wait_lock.lock();
  connection.has_leader = false;
  connection.wait_condition.notify_all();  // one of the followers takes over
  return result;
}

template <typename Predicate>
WaitResult Client::sleep_as_leader(Predicate done, TimeNs deadline, const std::atomic<bool>& interrupt) {
  Connection& connection = *connection_;
  std::vector<provider::WaitHandle> handles;
  std::vector<pollfd> fds;
  std::unique_lock lock(connection.mutex);
  engine_.detach(connection);
  const int kick_fd = connection.kick_fd();
  WaitResult result = WaitResult::kDone;
  bool signalled = false;
  while (true) {
    const TimeNs now = now_ns();
    connection.session().endpoint().arm();
    const size_t handled = connection.session().progress(now);
    connection.session().tick(now);
    if (handled > 0) connection.last_active = now;
    if (done()) break;
    result = WaitResult::kTimeout;
    if (now >= deadline) break;
    result = WaitResult::kInterrupted;
    if (signalled || interrupt.load() || connection.closed.load()) break;
    result = WaitResult::kDone;
    if (handled > 0) continue;
    handles.clear();
    connection.session().endpoint().append_wait_handles(handles);
    fds.assign(1, {kick_fd, POLLIN, 0});
    for (const auto& handle : handles)
      fds.push_back({handle.fd, static_cast<short>(handle.want_write ? POLLIN | POLLOUT : POLLIN), 0});
    const TimeNs left =
        std::max<TimeNs>(std::min({deadline, connection.session().next_tick(), now + kSecond}) - now, 0);
    const timespec timeout{static_cast<time_t>(left / kSecond), static_cast<long>(left % kSecond)};
    connection.leader_asleep = true;
    lock.unlock();
    const int ready = ppoll(fds.data(), fds.size(), &timeout, nullptr);
    // A signal that came before this thread slept woke nobody: the caller looks for it when time has passed, too.
    signalled = ready == 0 || (ready < 0 && errno == EINTR);
    lock.lock();
    connection.leader_asleep = false;
    eventfd_t kicks = 0;
    if (ready > 0 && (fds[0].revents & POLLIN) != 0) (void)eventfd_read(kick_fd, &kicks);
  }
  engine_.reattach(connection_);
  return result;
}

// For a moment only: what else there is to see to (signals, say) no other thread can tell of.
template <typename Predicate>
WaitResult Client::sleep_as_follower(Predicate done, TimeNs deadline, std::unique_lock<std::mutex>& wait_lock) {
  Connection& connection = *connection_;
  const TimeNs nap = std::min(kFollowerNap, std::max<TimeNs>(deadline - now_ns(), 0));
  connection.wait_condition.wait_for(wait_lock, std::chrono::nanoseconds(nap),
                                     [&] { return done() || !connection.has_leader || connection.closed.load(); });
  if (done()) return WaitResult::kDone;
  return now_ns() >= deadline ? WaitResult::kTimeout : WaitResult::kInterrupted;
}

rpc::HelloFields Client::peer_hello() {
  std::lock_guard lock(connection_->mutex);
  return connection_->session().peer_hello();
}

std::map<std::string, std::string> Client::info() {
  RRPC_CHECK(!belongs_to_parent(), "check_usable() comes first");
  std::lock_guard lock(connection_->mutex);
  const provider::QueuePair& qp = connection_->session().endpoint().queue_pair();
  std::map<std::string, std::string> fields{{"address", address_.to_string()},
                                            {"transport", transport_},
                                            {"bulk_method", std::string(qp.bulk_method())},
                                            {"peer", qp.peer_description()},
                                            {"exposure", std::string(exposure_kind_name(qp.exposure_kind()))},
                                            {"state", connection_->session().failed() ? "closed" : "connected"}};
  // "10.9.0.1:7471 on rxe0"
  if (const size_t on = fields["peer"].rfind(kOnAdapter); transport_.starts_with("verbs") && on != std::string::npos) {
    fields["adapter"] = fields["peer"].substr(on + kOnAdapter.size());
    fields["peer"].resize(on);
  }
  if (!sent_on_to_.empty()) fields["sent_on_to"] = sent_on_to_;
  for (const auto& [transport, reason] : why_not_) fields["why_not_" + transport] = reason;
  return fields;
}

std::map<std::string, int64_t> Client::stats() {
  RRPC_CHECK(!belongs_to_parent(), "check_usable() comes first");
  std::lock_guard lock(connection_->mutex);
  const endpoint::Counters& traffic = connection_->session().endpoint().traffic();
  std::map<std::string, int64_t> values{
      {"calls_in_flight", static_cast<int64_t>(connection_->session().client().calls_in_flight())}};
#define RRPC_CONNECTION_COUNTER(name) values[#name] = traffic.name.load(std::memory_order_relaxed);
  RRPC_CONNECTION_COUNTERS(RRPC_CONNECTION_COUNTER)
#undef RRPC_CONNECTION_COUNTER
  return values;
}

}  // namespace rrpc::driver
