#include "driver/client.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <utility>

#include "driver/spinner.h"

namespace rrpc::driver {
namespace {

constexpr TimeNs kFollowerNap = 50 * kMillisecond;
constexpr TimeNs kBusySlice = 50 * kMillisecond;
constexpr TimeNs kUpgradeTimeout = 2 * kSecond;
const std::atomic<bool> kNoInterrupt{false};

std::mutex g_engine_mutex;
Engine* g_engine = nullptr;

}  // namespace

Engine& client_engine() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] {
    new (&g_engine_mutex) std::mutex();
    g_engine = nullptr;  // its thread stayed with the parent
  });
  (void)registered;
  std::lock_guard lock(g_engine_mutex);
  if (g_engine == nullptr) g_engine = new Engine();
  return *g_engine;
}

void end_client_engine() {
  Engine* engine = nullptr;
  {
    std::lock_guard lock(g_engine_mutex);
    engine = g_engine;
  }
  // Not deleted: connections that outlive it may still name it.
  if (engine != nullptr) engine->stop();
}

Client::Client(Address address, ConnectionRef connection, std::string transport)
    : address_(std::move(address)), transport_(std::move(transport)), connection_(std::move(connection)) {}

Client::~Client() { close(); }

Result<std::unique_ptr<Client>> Client::connect(const std::string& text, const Options& options, TimeNs deadline) {
  RRPC_ASSIGN_OR_RETURN(const Address address, parse_address(text));
  RRPC_RETURN_IF_ERROR(endpoint::validate(options.session.geometry));
  if (address.scheme != "rrpc") return dial(address, address.scheme, options, deadline);
  RRPC_ASSIGN_OR_RETURN(std::unique_ptr<Client> client, dial(address, "tcp", options, deadline));
  client->upgrade(options, deadline);
  return client;
}

Result<std::unique_ptr<Client>> Client::dial(const Address& address, const std::string& transport,
                                             const Options& options, TimeNs deadline) {
  RRPC_ASSIGN_OR_RETURN(DeviceEntry * device, find_device(transport));
  const auto config = endpoint::queue_pair_config(options.session.geometry);
  auto cq = device->device->create_completion_queue(config.send_depth + config.receive_depth);
  RRPC_ASSIGN_OR_RETURN(auto qp, device->device->open(*cq, address.rest, config, deadline));
  Engine& engine = client_engine();
  auto connection = std::make_shared<Connection>(rpc::Role::kClient, engine.next_connection_id(), *device, std::move(cq),
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
  const Status& failure = connection->session().failure();
  const std::string message = "connecting to " + address.to_string() + ": " + failure.message();
  return failure.is_protocol_error() ? Status::protocol_error(message) : Status(failure.code(), message);
}

void Client::upgrade(const Options& options, TimeNs deadline) {
  rpc::HelloFields hello;
  {
    std::lock_guard lock(connection_->mutex);
    hello = connection_->session().peer_hello();
  }
  if (hello["host"] != host_identity() || hello["shm"].empty()) {
    why_not_["shm"] = hello["shm"].empty() ? "the server offers none" : "the server is on another host";
    return;
  }
  const TimeNs limit = std::min(deadline, deadline_after(now_ns(), kUpgradeTimeout));
  auto upgraded = dial({"shm", hello["shm"]}, "shm", options, limit);
  if (!upgraded.ok()) {
    why_not_["shm"] = upgraded.status().message();
    return;
  }
  std::string instance;
  {
    std::lock_guard lock((*upgraded)->connection_->mutex);
    const auto& fields = (*upgraded)->connection_->session().peer_hello();
    if (const auto it = fields.find("instance"); it != fields.end()) instance = it->second;
  }
  if (instance != hello["instance"]) {
    why_not_["shm"] = "another server answers on its socket";
    return;
  }
  std::swap(connection_, (*upgraded)->connection_);
  transport_ = "shm";
}

void Client::close() {
  if (belongs_to_parent()) return;
  {
    std::lock_guard lock(connection_->mutex);
    connection_->session().close(unavailable("the client closed the connection"));
    connection_->session().progress(now_ns());  // delivers what the flush ends
  }
  client_engine().remove(connection_);
}

Status Client::check_usable() const {
  if (belongs_to_parent())
    return failed_precondition("this connection belongs to the parent process; connect again after fork");
  return {};
}

Status Client::start(const rpc::ClientCallRef& call, rpc::CallRequest request) {
  RRPC_RETURN_IF_ERROR(check_usable());
  std::lock_guard lock(connection_->mutex);
  return connection_->session().client().start(call, std::move(request), now_ns());
}

bool Client::cancel(const rpc::ClientCallRef& call, Status why) {
  if (belongs_to_parent()) return false;
  std::lock_guard lock(connection_->mutex);
  if (call->done()) return false;
  connection_->session().client().cancel(call, std::move(why));
  return true;
}

void Client::on_done(const rpc::ClientCallRef& call, std::function<void()> callback) {
  {
    std::lock_guard lock(connection_->mutex);
    if (!call->done()) {
      call->on_done = std::move(callback);
      client_engine().note_deadline(call->deadline());
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
  cancel(call, deadline_exceeded("the call's deadline passed"));
  return WaitResult::kDone;
}

template <typename Predicate>
WaitResult Client::wait_until(Predicate done, rpc::ClientCall* call, TimeNs deadline, const std::atomic<bool>& interrupt) {
  Connection& connection = *connection_;
  TimeNs now = now_ns();
  const TimeNs slice_end = now + kBusySlice;
  const TimeNs spin_until = deadline_after(now, connection.options().spin_ns());
  Spinner spinner;
  while (true) {
    size_t handled = 0;
    if (std::unique_lock lock(connection.mutex, std::try_to_lock); lock) {
      handled = connection.session().progress(now);
      if (handled > 0) connection.last_active = now;
      if (done()) {
        // If nobody polls from here on, the next message must wake somebody.
        if (connection.attendance == Attendance::kArmed) connection.arm_until_quiet(now);
        return WaitResult::kDone;
      }
    } else if (done()) {
      return WaitResult::kDone;
    }
    if (handled > 0) {
      spinner.found_something();
      continue;
    }
    if (!spinner.pause()) continue;
    now = now_ns();
    if (now >= deadline || now >= spin_until) break;
    if (now >= slice_end || interrupt.load(std::memory_order_relaxed)) return WaitResult::kInterrupted;
  }
  if (call != nullptr) call->watched.store(true);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  bool expected = false;
  if (connection.has_leader.compare_exchange_strong(expected, true)) return sleep_as_leader(done, deadline, interrupt);
  return sleep_as_follower(done, deadline);
}

template <typename Predicate>
WaitResult Client::sleep_as_leader(Predicate done, TimeNs deadline, const std::atomic<bool>& interrupt) {
  Connection& connection = *connection_;
  WaitResult result = WaitResult::kDone;
  std::vector<provider::WaitHandle> handles;
  std::vector<pollfd> fds;
  std::unique_lock lock(connection.mutex);
  client_engine().detach(connection);
  const int kick_fd = connection.kick_fd();
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
    if (interrupt.load() || connection.closed.load()) break;
    result = WaitResult::kDone;
    if (handled > 0) continue;
    handles.clear();
    connection.session().endpoint().append_wait_handles(handles);
    fds.assign(1, {kick_fd, POLLIN, 0});
    for (const auto& handle : handles)
      fds.push_back({handle.fd, static_cast<short>(handle.want_write ? POLLIN | POLLOUT : POLLIN), 0});
    const TimeNs until = std::min({deadline, connection.session().next_tick(), now + kSecond});
    connection.leader_asleep = true;
    lock.unlock();
    std::atomic_thread_fence(std::memory_order_seq_cst);
    int ready = 0;
    if (!done()) {
      const timespec timeout{static_cast<time_t>(std::max<TimeNs>(until - now, 0) / kSecond),
                             static_cast<long>(std::max<TimeNs>(until - now, 0) % kSecond)};
      ready = ppoll(fds.data(), fds.size(), &timeout, nullptr);
    }
    const bool signalled = ready < 0 && errno == EINTR;
    lock.lock();
    connection.leader_asleep = false;
    eventfd_t kicks = 0;
    if (ready > 0 && (fds[0].revents & POLLIN) != 0) (void)eventfd_read(kick_fd, &kicks);
    if (!signalled) continue;
    result = WaitResult::kInterrupted;
    break;
  }
  client_engine().reattach(connection);
  lock.unlock();
  connection.has_leader.store(false);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (connection.followers.load() > 0) {
    std::lock_guard wait_lock(connection.wait_mutex);
    connection.wait_condition.notify_all();
  }
  if (connection.closed.load()) client_engine().remove(connection_);
  return result;
}

template <typename Predicate>
WaitResult Client::sleep_as_follower(Predicate done, TimeNs deadline) {
  Connection& connection = *connection_;
  std::unique_lock lock(connection.wait_mutex);
  connection.followers.fetch_add(1);
  const TimeNs nap = std::min(kFollowerNap, std::max<TimeNs>(deadline - now_ns(), 0));
  connection.wait_condition.wait_for(lock, std::chrono::nanoseconds(nap),
                                     [&] { return done() || !connection.has_leader.load() || connection.closed.load(); });
  connection.followers.fetch_sub(1);
  if (done()) return WaitResult::kDone;
  return now_ns() >= deadline ? WaitResult::kTimeout : WaitResult::kInterrupted;
}

std::map<std::string, std::string> Client::info() {
  std::lock_guard lock(connection_->mutex);
  const provider::QueuePair& qp = connection_->session().endpoint().queue_pair();
  std::map<std::string, std::string> fields{{"address", address_.to_string()},
                                            {"transport", transport_},
                                            {"bulk_method", std::string(qp.bulk_method())},
                                            {"peer", qp.peer_description()},
                                            {"state", connection_->session().failed() ? "closed" : "connected"}};
  for (const auto& [transport, reason] : why_not_) fields["why_not_" + transport] = reason;
  return fields;
}

}  // namespace rrpc::driver
