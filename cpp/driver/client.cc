#include "driver/client.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <tuple>
#include <utility>

#include "base/at_fork.h"
#include "base/check.h"
#include "driver/waiter.h"
#include "endpoint/pool.h"

namespace rrpc::driver {
namespace {

constexpr std::string_view kOnAdapter = " on ";  // in the description of a verbs peer
const std::atomic<bool> kNoInterrupt{false};

std::mutex g_engine_mutex;
// Never deleted: connections that outlive the interpreter may still name it.
std::shared_ptr<Engine>& g_engine = *new std::shared_ptr<Engine>;

const AtFork kEngineAtFork{[] {
  new (&g_engine_mutex) std::mutex();
  new (&g_engine) std::shared_ptr<Engine>();  // its thread stayed with the parent
}};

}  // namespace

Engine& client_engine() {
  std::lock_guard lock(g_engine_mutex);
  if (g_engine == nullptr) g_engine = std::make_shared<Engine>();
  return *g_engine;
}

Client::Client(Address address, ConnectionRef connection, std::string transport, std::shared_ptr<Server> server,
               bool owns_connection)
    : server_(std::move(server)),
      owns_connection_(owns_connection),
      address_(std::move(address)),
      transport_(std::move(transport)),
      connection_(std::move(connection)) {}

Client::~Client() {
  close();
  if (belongs_to_parent()) std::ignore = rails_.release();  // its mutex may be held for ever
}

Result<std::unique_ptr<Client>> Client::of_peer(std::shared_ptr<Server> server, uint64_t handle) {
  Work work;
  if (!server->find(handle, work))
    return Status(StatusCode::kNotFound,
                  "call handle " + std::to_string(handle) + " is unknown or was answered already");
  Address address{work.connection->transport(), ""};
  {
    std::lock_guard lock(work.connection->mutex);
    if (!work.connection->session().makes_calls())
      return failed_precondition("the client takes no calls: it was connected without serve=");
    address.rest = work.connection->session().endpoint().queue_pair().peer_description();
  }
  return std::unique_ptr<Client>(
      new Client(address, work.connection, work.connection->transport(), std::move(server), false));
}

void Client::close() {
  if (belongs_to_parent() || !owns_connection_) return;
  std::unique_ptr<RailKeeper> rails;  // goes without the mutex
  {
    std::lock_guard lock(connection_->mutex);
    connection_->session().close(unavailable("the client closed the connection"));
    rails = std::move(rails_);
  }
  engine().see_off(connection_);
}

Status Client::check_usable() const {
  if (belongs_to_parent())
    return failed_precondition("this connection belongs to the parent process; connect again after fork");
  return {};
}

Status Client::start(const rpc::ClientCallRef& call, rpc::CallRequest&& request, bool more) {
  RRPC_RETURN_IF_ERROR(check_usable());
  std::lock_guard lock(connection_->mutex);
  const TimeNs now = now_ns();
  bool may_wait = false;
  if (more) {
    engine().tick_soon();  // nobody may wait for it
    may_wait = connection_->start_pace.may_wait(now, calls_in_flight());
  }
  const endpoint::Endpoint::Holding holding(connection_->session().endpoint(),
                                            may_wait && engine().polls_soon(*connection_));
  const Status status = connection_->session().client().start(call, std::move(request), now);
  if (status.ok()) engine().note_deadline(*connection_, call->deadline());  // there may be nobody who waits for it
  engine().settle(connection_, now);
  return status;
}

Status Client::start_in_loop(const std::shared_ptr<LoopCall>& call, rpc::CallRequest request) {
  size_t fetched_bytes = 0;
  for (const endpoint::Buffer& buffer : request.buffers) fetched_bytes += buffer.length_bytes;
  RRPC_RETURN_IF_ERROR(start(call, std::move(request), true));
  call->queue().await(*call, connection_, engine().shared_from_this(), fetched_bytes);
  return {};
}

Result<std::unique_ptr<Stream>> Client::open(const rpc::ClientCallRef& call, rpc::CallRequest request) {
  RRPC_RETURN_IF_ERROR(start(call, std::move(request)));
  return std::make_unique<Stream>(engine().shared_from_this(), connection_, call->stream(), call->deadline(), call);
}

bool Client::cancel(const rpc::ClientCallRef& call, Status why) {
  if (belongs_to_parent()) return false;
  std::lock_guard lock(connection_->mutex);
  if (call->done()) return false;
  connection_->session().client().cancel(call, std::move(why));
  engine().settle(connection_, now_ns());
  engine().tick_soon();  // for the acknowledgement
  return true;
}

bool Client::on_done(const rpc::ClientCallRef& call, std::function<void()> callback) {
  std::lock_guard lock(connection_->mutex);
  if (call->done()) return false;
  call->on_done = std::move(callback);
  engine().tick_soon();
  return true;
}

bool Client::on_unusable(std::function<void()> callback) {
  std::lock_guard lock(connection_->mutex);
  if (!usable()) return false;
  connection_->on_unusable.push_back(std::move(callback));
  return true;
}

WaitResult Client::wait(const rpc::ClientCallRef& call, TimeNs deadline, const std::atomic<bool>& interrupt) {
  if (call->done()) return WaitResult::kDone;
  if (belongs_to_parent()) return WaitResult::kTimeout;
  const WaitResult result = Waiter(engine(), connection_, call.get(), std::min(deadline, call->deadline()), interrupt)
                                .wait([&call] { return call->done(); }, [&call] { call->watched = true; });
  if (result != WaitResult::kTimeout || now_ns() < call->deadline()) return result;
  cancel(call, call->deadline_passed());
  return WaitResult::kDone;
}

void Client::wait_for_handshake(TimeNs deadline) {
  const auto settled = [this] { return connection_->closed.load() || connection_->ready.load(); };
  while (Waiter(engine(), connection_, nullptr, deadline, kNoInterrupt).wait(settled, [] {}) ==
         WaitResult::kInterrupted) {
  }
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
                                            {"local", qp.local_description()},
                                            {"exposure", std::string(exposure_kind_name(qp.exposure_kind()))},
                                            {"security", security()},
                                            {"state", connection_->session().failed() ? "closed" : "connected"}};
  // "10.9.0.1:7471 on rxe0"
  if (const size_t on = fields["peer"].rfind(kOnAdapter); transport_.starts_with("verbs") && on != std::string::npos) {
    fields["adapter"] = fields["peer"].substr(on + kOnAdapter.size());
    fields["peer"].resize(on);
    fields["local"].resize(fields["local"].rfind(kOnAdapter));
  }
  fields.merge(qp.fabric_marks());
  if (const int node = endpoint::Pool::process().preferred_node(); node >= 0)
    fields["numa_node"] = std::to_string(node);
  if (rails_) fields["rails"] = rails_->describe(connection_->session().endpoint());
  if (!sent_on_to_.empty()) fields["sent_on_to"] = sent_on_to_;
  for (const auto& [transport, reason] : why_not_) fields["why_not_" + transport] = reason;
  return fields;
}

// With the connection's mutex.
std::string Client::security() {
  const std::string_view protection = connection_->session().endpoint().queue_pair().protection();
  if (!protection.empty()) return std::string(protection);
  const auto& introduced = connection_->introduced;
  if (introduced && introduced->protection() != Protection::kNone)
    return std::string(protection_name(introduced->protection()));
  return transport_ == "shm" ? "same host" : "none";
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
