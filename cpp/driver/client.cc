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
#include "driver/offers.h"
#include "driver/spinner.h"

namespace rrpc::driver {
namespace {

constexpr TimeNs kFollowerNap = 50 * kMillisecond;
constexpr TimeNs kBusySlice = 50 * kMillisecond;
constexpr TimeNs kUpgradeTimeout = 2 * kSecond;
constexpr int kProcessesTried = 3;
constexpr std::string_view kOnAdapter = " on ";  // in the description of a verbs peer
const std::atomic<bool> kNoInterrupt{false};

std::string first_transport(const Address& address) { return address.scheme == "rrpc" ? "tcp" : address.scheme; }

Status in_context(const std::string& what, const Status& status) {
  const std::string message = what + ": " + status.message();
  return status.is_protocol_error() ? Status::protocol_error(message) : Status(status.code(), message);
}

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

Result<std::unique_ptr<Client>> Client::connect(const std::string& text, const Options& options, TimeNs deadline) {
  RRPC_ASSIGN_OR_RETURN(const Address address, parse_address(text));
  RRPC_RETURN_IF_ERROR(endpoint::validate(options.session.geometry));
  RRPC_ASSIGN_OR_RETURN(std::unique_ptr<Client> client, reach(address, options, deadline));
  if (address.scheme == "rrpc") RRPC_RETURN_IF_ERROR(client->move_up(options, deadline));
  return client;
}

// One of several processes behind an address may have died since it was named: then the next is asked for.
Result<std::unique_ptr<Client>> Client::reach(const Address& address, const Options& options, TimeNs deadline) {
  for (int tried = 1;; ++tried) {
    RRPC_ASSIGN_OR_RETURN(std::unique_ptr<Client> client, dial(address, first_transport(address), options, deadline));
    const rpc::HelloFields hello = client->peer_hello();
    const auto go_to = hello.find("go_to");
    if (go_to == hello.end()) return client;
    client.reset();
    const Result<Address> target = sent_on(address, go_to->second);
    if (!target.ok()) return in_context("connecting to " + address.to_string(), target.status());
    auto there = go_on(address, *target, options, deadline);
    if (there.status().code() != StatusCode::kUnavailable || tried == kProcessesTried) return there;
  }
}

Result<std::unique_ptr<Client>> Client::go_on(const Address& dialled, const Address& target, const Options& options,
                                              TimeNs deadline) {
  auto client = dial(target, first_transport(target), options, deadline);
  if (!client.ok()) return in_context(dialled.to_string() + " sent this client on", client.status());
  if ((*client)->peer_hello().contains("go_to"))
    return Status::protocol_error("connecting to " + dialled.to_string() + ": the process at " + target.to_string() +
                                  ", where the server sent this client, sends it on once more");
  (*client)->address_ = dialled;
  (*client)->sent_on_to_ = target.to_string();
  return client;
}

// Soft-iWARP was seen to lose a request to connect once in some thousands, and nothing but time tells: so a request
// that isn't answered is made once more.
Result<std::unique_ptr<Client>> Client::dial(const Address& address, const std::string& transport,
                                             const Options& options, TimeNs deadline) {
  if (!transport.starts_with("verbs")) return dial_once(address, transport, options, deadline);
  const TimeNs now = now_ns();
  const TimeNs limit = std::min(deadline, deadline_after(now, options.handshake_timeout));
  auto client = dial_once(address, transport, options, now + (limit - now) / 2);
  if (client.status().code() != StatusCode::kDeadlineExceeded) return client;
  return dial_once(address, transport, options, deadline);
}

Result<std::unique_ptr<Client>> Client::dial_once(const Address& address, const std::string& transport,
                                                  const Options& options, TimeNs deadline) {
  RRPC_ASSIGN_OR_RETURN(DeviceEntry * device, find_device(transport));
  const auto config = endpoint::queue_pair_config(options.session.geometry);
  auto cq = device->device->create_completion_queue(config.send_depth + config.receive_depth);
  RRPC_ASSIGN_OR_RETURN(auto qp, device->device->open(*cq, address.rest, config, deadline));
  Engine& engine = client_engine();
  auto connection =
      std::make_shared<Connection>(rpc::Role::kClient, engine.next_connection_id(), *device, std::move(cq),
                                   std::move(qp), options, rpc::HelloFields{{"wire", "1"}}, nullptr);
  std::unique_ptr<Client> client(new Client(address, connection, transport));
  const TimeNs now = now_ns();
  {
    std::lock_guard lock(connection->mutex);
    connection->handshake_deadline = std::min(deadline, deadline_after(now, options.handshake_timeout));
    RRPC_RETURN_IF_ERROR(connection->session().start(now));
  }
  engine.add(connection);
  const auto settled = [&connection] { return connection->closed.load() || connection->ready.load(); };
  WaitResult result = WaitResult::kInterrupted;
  while (result == WaitResult::kInterrupted)
    result = client->wait_until(settled, nullptr, connection->handshake_deadline, kNoInterrupt);
  std::lock_guard lock(connection->mutex);
  if (connection->session().ready()) return client;
  if (!connection->session().failed())
    return deadline_exceeded("connecting to " + address.to_string() + ": no answer in time");
  return in_context("connecting to " + address.to_string(), connection->session().failure());
}

rpc::HelloFields Client::peer_hello() {
  std::lock_guard lock(connection_->mutex);
  return connection_->session().peer_hello();
}

Status Client::move_up(const Options& options, TimeNs deadline) {
  const rpc::HelloFields hello = peer_hello();
  const bool may_stay = lists(options.transports, "tcp") && offers_tcp(hello);
  // Where TCP would do, nobody waits long for something better.
  const TimeNs limit = may_stay ? std::min(deadline, deadline_after(now_ns(), kUpgradeTimeout)) : deadline;
  for (const std::string& transport : all_transports()) {
    if (!lists(options.transports, transport)) why_not_[transport] = "the transports option leaves it out";
  }
  for (const std::string& transport : options.transports) {
    if (transport == "tcp" && may_stay) return {};
    const Status moved = transport == "tcp" ? unavailable("the server's transports option leaves it out")
                                            : move_to(transport, hello, options, limit);
    if (moved.ok()) return {};
    why_not_[transport] = moved.message();
  }
  std::vector<std::string> reasons;
  for (const auto& [transport, reason] : why_not_) reasons.emplace_back(transport).append(": ").append(reason);
  return unavailable("connecting to " + address_.to_string() +
                     ": no transport that both ends allow can be had: " + join(reasons, "; "));
}

Status Client::move_to(const std::string& transport, const rpc::HelloFields& hello, const Options& options,
                       TimeNs deadline) {
  const Candidates found = candidates(transport, hello, address_);
  if (found.addresses.empty()) return unavailable(found.why_none);
  const auto instance = hello.find("instance");
  std::vector<std::string> reasons;
  for (size_t i = 0; i < found.addresses.size(); ++i) {
    const Address& address = found.addresses[i];
    RRPC_RETURN_IF_ERROR(find_device(address.scheme).status());
    const TimeNs now = now_ns();
    // One that doesn't answer leaves time for the next.
    const auto left = static_cast<TimeNs>(found.addresses.size() - i);
    const TimeNs share = deadline == kNever ? kNever : now + std::max<TimeNs>(deadline - now, 0) / left;
    Status moved = try_address(address, instance == hello.end() ? "" : instance->second, options, share);
    if (moved.ok()) return {};
    reasons.push_back(moved.message());
  }
  return unavailable(join(reasons, "; "));
}

Status Client::try_address(const Address& address, const std::string& instance, const Options& options,
                           TimeNs deadline) {
  auto upgraded = dial_once(address, address.scheme, options, deadline);
  // An adapter may fail a first connect that succeeds the next time (Soft-iWARP does).
  if (upgraded.status().code() == StatusCode::kUnavailable && address.scheme != "shm")
    upgraded = dial_once(address, address.scheme, options, deadline);
  RRPC_RETURN_IF_ERROR(upgraded.status());
  const rpc::HelloFields hello = (*upgraded)->peer_hello();
  const auto answering = hello.find("instance");
  if (answering == hello.end() || answering->second != instance)
    return unavailable("another server answers at " + address.to_string());
  std::swap(connection_, (*upgraded)->connection_);
  transport_ = address.scheme;
  return {};
}

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
