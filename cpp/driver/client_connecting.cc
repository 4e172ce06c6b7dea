// How a client comes to its connection: dialling, being sent on, moving up from TCP to something better.
#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

#include "base/helper_thread.h"
#include "driver/client.h"
#include "driver/offers.h"
#include "driver/tls.h"

namespace rrpc::driver {
namespace {

constexpr TimeNs kUpgradeTimeout = 2 * kSecond;
constexpr int kProcessesTried = 3;

Status in_context(const std::string& what, const Status& status) {
  const std::string message = what + ": " + status.message();
  return status.is_protocol_error() ? Status::protocol_error(message) : Status(status.code(), message);
}

}  // namespace

Result<std::unique_ptr<Client>> Client::connect(const std::string& text, const Options& options, TimeNs deadline,
                                                std::shared_ptr<Server> serve) {
  RRPC_ASSIGN_OR_RETURN(Address address, parse_address(text));
  RRPC_RETURN_IF_ERROR(choose_tls(address, options));
  RRPC_RETURN_IF_ERROR(endpoint::validate(options.session.geometry));
  if (serve != nullptr && serve->ended()) return failed_precondition("the server given as serve= was stopped");
  if (address.is_verbs()) RRPC_RETURN_IF_ERROR(find_device(address.scheme).status());
  if (address.secure && !address.rails.empty())
    return invalid_argument("cannot connect to " + text +
                            ": a connection with TLS has no rails, for nothing would prove who is at their other end; "
                            "leave out rail=, or use a channel over both addresses");
  const Dialling dialling{options, std::move(serve)};
  RRPC_ASSIGN_OR_RETURN(std::unique_ptr<Client> client, reach(address, dialling, deadline));
  if (address.moves_on()) RRPC_RETURN_IF_ERROR(client->move_up(dialling, deadline));
  if (!address.rails.empty())
    client->rails_ = std::make_unique<RailKeeper>(client->connection_, rail_addresses(address), client->peer_hello());
  return client;
}

// One of several processes behind an address may have died since it was named, or be full: then the next is asked for.
Result<std::unique_ptr<Client>> Client::reach(const Address& address, const Dialling& dialling, TimeNs deadline) {
  for (int tried = 1;; ++tried) {
    RRPC_ASSIGN_OR_RETURN(std::unique_ptr<Client> client, dial(address, dialling, deadline));
    const rpc::HelloFields hello = client->peer_hello();
    const auto go_to = hello.find("go_to");
    if (go_to == hello.end()) return client;
    client.reset();
    const Result<Address> target = sent_on(address, go_to->second);
    if (!target.ok()) return in_context("connecting to " + address.to_string(), target.status());
    auto there = go_on(address, *target, dialling, deadline);
    const StatusCode code = there.status().code();
    const bool elsewhere = code == StatusCode::kUnavailable || code == StatusCode::kResourceExhausted;
    if (!elsewhere || tried == kProcessesTried) return there;
  }
}

Result<std::unique_ptr<Client>> Client::go_on(const Address& dialled, const Address& target, const Dialling& dialling,
                                              TimeNs deadline) {
  auto client = dial(target, dialling, deadline);
  if (!client.ok()) return in_context(dialled.to_string() + " sent this client on", client.status());
  if ((*client)->peer_hello().contains("go_to"))
    return Status::protocol_error("connecting to " + dialled.to_string() + ": the process at " + target.to_string() +
                                  ", where the server sent this client, sends it on once more");
  (*client)->address_ = dialled;
  (*client)->sent_on_to_ = target.to_string();
  return client;
}

// Soft-iWARP loses a request to connect now and then, on a busy machine also two in a row, and nothing but time tells:
// so a request that isn't answered is made again while there is time for another one.
Result<std::unique_ptr<Client>> Client::dial(const Address& address, const Dialling& dialling, TimeNs deadline) {
  if (!address.first_leg().is_verbs()) return dial_once(address, dialling, deadline);
  const TimeNs begin = now_ns();
  const TimeNs handshake_end = deadline_after(begin, dialling.options.handshake_timeout);
  const TimeNs end = deadline == kNever ? handshake_end : deadline;
  const TimeNs share = (std::min(end, handshake_end) - begin) / 4;
  for (TimeNs now = begin; end - now > 2 * share; now = now_ns()) {
    auto client = dial_once(address, dialling, now + share);
    if (client.status().code() != StatusCode::kDeadlineExceeded) return client;
  }
  return dial_once(address, dialling, end);
}

Result<std::unique_ptr<Client>> Client::dial_once(const Address& address, const Dialling& dialling, TimeNs deadline) {
  const Address leg = address.first_leg();
  RRPC_ASSIGN_OR_RETURN(DeviceEntry * device, find_device(leg.scheme));
  Server* const serve = dialling.serve.get();
  Engine& engine = serve != nullptr ? serve->engine() : client_engine();
  RRPC_RETURN_IF_ERROR(engine.start(dialling.options.numa_node));
  wait_behind(Behind::kEnds, Connection::kEndingMax, deadline);
  auto config = endpoint::queue_pair_config(dialling.options.session.geometry);
  RRPC_ASSIGN_OR_RETURN(config.tls, tls_context(address, provider::TlsRole::kClient, dialling.options));
  auto cq = device->device->create_completion_queue(config.send_depth + config.receive_depth);
  RRPC_ASSIGN_OR_RETURN(auto qp, device->device->open(*cq, leg.rest, config, deadline));
  rpc::HelloFields hello{{"wire", "1"}};
  if (serve != nullptr) hello["serves"] = "1";
  if (!address.rails.empty()) hello[kRailToken] = "";
  const auto connection = Connection::make(rpc::Role::kClient, engine.next_connection_id(), *device, std::move(cq),
                                           std::move(qp), dialling.options, std::move(hello), serve);
  connection->engine = &engine;
  std::unique_ptr<Client> client(new Client(address, connection, leg.scheme, dialling.serve));
  const TimeNs now = now_ns();
  {
    std::lock_guard lock(connection->mutex);
    connection->handshake_deadline = std::min(deadline, deadline_after(now, dialling.options.handshake_timeout));
    if (serve != nullptr) serve->prepare(*connection);
    if (dialling.introduction)
      connection->introduced.emplace(*dialling.introduction, rpc::Role::kClient, leg.scheme, dialling.protection);
    RRPC_RETURN_IF_ERROR(connection->session().start(now));
  }
  engine.add(connection);
  client->wait_for_handshake(connection->handshake_deadline);
  std::unique_lock lock(connection->mutex);
  if (connection->session().ready()) {
    Status why = rpc::refusal_in(connection->session().peer_hello());
    if (dialling.introduction && connection->session().failed()) why = connection->session().failure();
    if (why.ok()) return client;
    lock.unlock();  // the client's end closes the connection
    return in_context("connecting to " + address.to_string(), why);
  }
  const Status why =
      connection->session().failed() ? connection->session().failure() : Connection::unfinished_handshake();
  return in_context("connecting to " + address.to_string(), why);
}

Status Client::move_up(const Dialling& dialling, TimeNs deadline) {
  const rpc::HelloFields hello = peer_hello();
  if (address_.is_verbs()) {
    const Status moved = move_to("verbs", hello, dialling, deadline);
    return moved.ok() ? moved : in_context("connecting to " + address_.to_string(), moved);
  }
  const bool may_stay = lists(dialling.options.transports, "tcp") && offers_tcp(hello);
  // Where TCP would do, nobody waits long for something better.
  const TimeNs limit = may_stay ? std::min(deadline, deadline_after(now_ns(), kUpgradeTimeout)) : deadline;
  for (const std::string& transport : all_transports()) {
    if (!lists(dialling.options.transports, transport)) why_not_[transport] = "the transports option leaves it out";
  }
  for (const std::string& transport : dialling.options.transports) {
    if (transport == "tcp" && may_stay) return {};
    const Status moved = transport == "tcp" ? unavailable("the server's transports option leaves it out")
                                            : move_to(transport, hello, dialling, limit);
    if (moved.ok()) return {};
    if (moved.code() == StatusCode::kInvalidArgument && !address_.options().empty())
      return in_context("connecting to " + address_.to_string(), moved);
    why_not_[transport] = moved.message();
  }
  std::vector<std::string> reasons;
  for (const auto& [transport, reason] : why_not_) reasons.emplace_back(transport).append(": ").append(reason);
  return unavailable("connecting to " + address_.to_string() +
                     ": no transport that both ends allow can be had: " + join(reasons, "; "));
}

Result<Client::Dialling> Client::introducing(const std::string& transport, const rpc::HelloFields& hello,
                                             const Dialling& dialling) {
  Dialling introduced{dialling.options, dialling.serve};
  if (!address_.secure) return introduced;
  if (transport != "shm") {
    RRPC_ASSIGN_OR_RETURN(const Protection theirs, asked_protection(hello));
    introduced.protection = agreed(theirs, dialling.options.rdma_security);
    if (introduced.protection == Protection::kNone)
      return failed_precondition("TLS was asked for, and rdma_security is 'none'" +
                                 std::string(theirs == Protection::kNone ? " at the server" : ""));
  }
  RRPC_ASSIGN_OR_RETURN(auto tls, tls_context(address_, provider::TlsRole::kClient, dialling.options));
  std::lock_guard lock(connection_->mutex);
  introduced.introduction = introduction_by(connection_->session().endpoint().queue_pair(), std::move(tls));
  if (!introduced.introduction) return unavailable("the TLS connection has ended");
  return introduced;
}

Status Client::move_to(const std::string& transport, const rpc::HelloFields& hello, const Dialling& dialling,
                       TimeNs deadline) {
  RRPC_ASSIGN_OR_RETURN(const Dialling introduced, introducing(transport, hello, dialling));
  const Candidates found = candidates(transport, hello, address_);
  if (found.addresses.empty()) return unavailable(found.why_none);
  const auto instance = hello.find("instance");
  std::vector<std::string> reasons;
  std::set<StatusCode> codes;
  for (size_t i = 0; i < found.addresses.size(); ++i) {
    const Address& address = found.addresses[i];
    RRPC_RETURN_IF_ERROR(find_device(address.scheme).status());
    const TimeNs now = now_ns();
    // One that doesn't answer leaves time for the next.
    const auto left = static_cast<TimeNs>(found.addresses.size() - i);
    const TimeNs share = deadline == kNever ? kNever : now + std::max<TimeNs>(deadline - now, 0) / left;
    Status moved = try_address(address, instance == hello.end() ? "" : instance->second, introduced, share);
    if (moved.ok()) return {};
    reasons.push_back(moved.message());
    codes.insert(moved.code());
  }
  // All of them for one reason, as a server that refuses this client; or there is none to be had.
  return {codes.size() == 1 ? *codes.begin() : StatusCode::kUnavailable, join(reasons, "; ")};
}

Status Client::try_address(const Address& address, const std::string& instance, const Dialling& dialling,
                           TimeNs deadline) {
  const bool may_stay = !address_.is_verbs();  // else lost requests to connect are worth the time to make them again
  auto upgraded = may_stay ? dial_once(address, dialling, deadline) : dial(address, dialling, deadline);
  // An adapter may fail a first connect that succeeds the next time (Soft-iWARP does).
  if (upgraded.status().code() == StatusCode::kUnavailable && address.scheme != "shm")
    upgraded = dial_once(address, dialling, deadline);
  RRPC_RETURN_IF_ERROR(upgraded.status());
  const rpc::HelloFields hello = (*upgraded)->peer_hello();
  const auto answering = hello.find("instance");
  if (answering == hello.end() || answering->second != instance)
    return unavailable("another server answers at " + address.to_string());
  std::swap(connection_, (*upgraded)->connection_);
  transport_ = address.scheme;
  return {};
}

}  // namespace rrpc::driver
