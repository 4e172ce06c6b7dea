// How clients reach a server: its listeners, what it offers behind rrpc://, whom it accepts.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <random>
#include <span>
#include <utility>

#include "base/helper_thread.h"
#include "base/text.h"
#include "driver/offers.h"
#include "driver/server.h"
#include "driver/tls.h"
#include "driver/user_database.h"

namespace rrpc::driver {

// Connections that wait to be accepted; the system may have a lower limit (net.core.somaxconn). A full backlog costs a
// client a second, when it tries again.
static constexpr int kBacklog = 4096;
static constexpr char kNotHere[] = "this process takes no calls: its HELLO names the one that does (go_to)";

// Up to a tenth shorter or longer, so that clients that came together don't go together.
static TimeNs with_jitter(TimeNs age) {
  if (age >= kNever / 2) return kNever;
  static thread_local std::minstd_rand generator{std::random_device{}()};
  return static_cast<TimeNs>(static_cast<double>(age) * std::uniform_real_distribution<>(0.9, 1.1)(generator));
}

std::string Server::random_text() {
  std::random_device device;
  std::array<uint32_t, 4> words{};
  for (uint32_t& word : words) word = device();
  return hexadecimal(std::as_bytes(std::span(words)));
}

Status Server::start_engines() {
  for (const auto& engine : engines_) RRPC_RETURN_IF_ERROR(engine->start(options_.numa_node));
  return {};
}

// Each gets its share. Those of one process over shared memory stay together: it has one page for their bits.
Engine& Server::engine_for(const std::string& scheme, const std::string& peer) {
  if (engines_.size() == 1) return engine();
  const auto pollers = std::span(engines_).subspan(1);
  if (scheme == "shm") return *pollers[std::hash<std::string>()(peer) % pollers.size()];
  return **std::ranges::min_element(pollers, {}, [](const auto& poller) { return poller->connection_count(); });
}

Result<std::string> Server::listen(const std::string& text) {
  RRPC_ASSIGN_OR_RETURN(Address address, parse_address(text));
  RRPC_RETURN_IF_ERROR(choose_tls(address, options_));
  RRPC_RETURN_IF_ERROR(endpoint::validate(options_.session.geometry));
  if (!address.rails.empty())
    return invalid_argument("cannot listen on " + text + ": rail= is for clients; listen on each address");
  RRPC_RETURN_IF_ERROR(start_engines());
  if (address.is_verbs()) RRPC_RETURN_IF_ERROR(find_device(address.scheme).status());
  if (address.scheme == "rrpc" && !address.options().empty())
    return invalid_argument("cannot listen on " + text + ": '" + address.options() +
                            "' is for clients of rrpc://; listen on a verbs:// address to choose an adapter");
  RRPC_ASSIGN_OR_RETURN(ListenerEntry entry, open_first(address));
  if (!address.moves_on()) return address.shown_scheme() + "://" + attach(std::move(entry));
  std::vector<ListenerEntry> beside;
  RRPC_ASSIGN_OR_RETURN(rpc::HelloFields offers, listen_beside(address, entry.listener->address(), beside));
  for (ListenerEntry& other : beside) attach(std::move(other), {}, address.secure);
  return address.shown_scheme() + "://" + attach(std::move(entry), std::move(offers));
}

Result<std::string> Server::listen_for_others(const std::string& text) {
  RRPC_ASSIGN_OR_RETURN(Address address, parse_address(text));
  RRPC_RETURN_IF_ERROR(choose_tls(address, options_));
  RRPC_RETURN_IF_ERROR(start_engines());
  RRPC_ASSIGN_OR_RETURN(ListenerEntry entry, open_first(address));
  {
    std::lock_guard lock(mutex_);
    redirects_[entry.listener->address()];
  }
  return address.shown_scheme() + "://" + attach(std::move(entry));
}

Status Server::redirect(const std::string& bound, std::vector<std::string> targets) {
  RRPC_ASSIGN_OR_RETURN(const Address address, parse_address(bound));
  std::lock_guard lock(mutex_);
  const auto it = redirects_.find(address.rest);
  if (it == redirects_.end()) return {StatusCode::kNotFound, "no clients are sent on from " + bound};
  it->second.targets = std::move(targets);
  return {};
}

rpc::HelloFields Server::hello_of(const provider::Listener& listener) {
  rpc::HelloFields hello{{"wire", "1"}, {"host", host_identity()}, {"instance", instance_}};
  std::lock_guard lock(mutex_);
  if (const auto it = offers_.find(&listener); it != offers_.end()) hello.insert(it->second.begin(), it->second.end());
  if (const auto it = redirects_.find(listener.address()); it != redirects_.end()) {
    Redirect& redirect = it->second;
    const size_t count = redirect.targets.size();
    hello["go_to"] = count == 0 ? "" : redirect.targets[redirect.next++ % count];
  }
  return hello;
}

// Where its clients begin.
Result<ListenerEntry> Server::open_first(const Address& address) {
  RRPC_ASSIGN_OR_RETURN(auto tls, tls_for(address));
  const Address leg = address.first_leg();
  return open_listener(leg.scheme, leg.rest, std::move(tls));
}

Result<ListenerEntry> Server::open_listener(const std::string& scheme, const std::string& rest,
                                            std::shared_ptr<provider::TlsContext> tls) const {
  RRPC_ASSIGN_OR_RETURN(DeviceEntry * device, find_device(scheme));
  RRPC_ASSIGN_OR_RETURN(auto listener, device->device->listen(rest, {kBacklog, options_.any_user, std::move(tls)}));
  ListenerEntry entry{std::move(listener), device, nullptr};
  RRPC_RETURN_IF_ERROR(share_receives(entry));
  return entry;
}

std::string Server::attach(ListenerEntry entry, rpc::HelloFields offers, bool beside_tls) {
  std::string bound = entry.listener->address();
  {
    std::lock_guard lock(mutex_);
    // Over those of one that was closed, which may have been where this is.
    shared_rings_[entry.listener.get()] = std::move(entry.receives);
    offers_[entry.listener.get()] = std::move(offers);
    beside_tls_.erase(entry.listener.get());
    if (beside_tls) beside_tls_.insert(entry.listener.get());
  }
  engine().add_listener(std::move(entry));
  return bound;
}

Result<rpc::HelloFields> Server::listen_beside(const Address& address, const std::string& bound,
                                               std::vector<ListenerEntry>& beside) const {
  static const std::vector<std::string> verbs_alone{"verbs"};
  const std::vector<std::string>& allowed = address.is_verbs() ? verbs_alone : options_.transports;
  const std::string why_left_out =
      address.is_verbs() ? "its address insists on " + address.scheme : "its transports option leaves it out";
  rpc::HelloFields hello;
  std::vector<std::string> reasons;
  for (const std::string& transport : all_transports()) {
    if (transport == "tcp") continue;
    if (!lists(allowed, transport)) {
      hello["no_" + transport] = why_left_out;
      continue;
    }
    if (address.secure && transport == "verbs" && options_.rdma_security == Protection::kNone) {
      hello["no_verbs"] = "TLS was asked for, and its rdma_security is 'none'";
      continue;
    }
    if (address.secure && transport == "verbs") hello[kRdmaSecurity] = protection_name(options_.rdma_security);
    const Status offered = transport == "shm" ? offer_shm(hello, beside) : offer_verbs(address, bound, hello, beside);
    if (offered.ok()) continue;
    // Refused as it is without TLS.
    if (address.is_verbs())
      return Status(offered.code(), "cannot listen on " + address.to_string() + ": " + offered.message());
    reasons.push_back(transport + ": " + offered.message());
  }
  if (lists(allowed, "tcp")) return hello;
  if (beside.empty())
    return unavailable(address.shown_scheme() + "://" + bound +
                       ": none of the transports allowed can be had: " + join(reasons, "; "));
  hello["transports"] = join(allowed, ",");
  return hello;
}

Status Server::offer_shm(rpc::HelloFields& hello, std::vector<ListenerEntry>& beside) const {
  const std::string name = "rrpc-" + std::to_string(getpid()) + "-" + random_text().substr(0, 12);
  RRPC_ASSIGN_OR_RETURN(ListenerEntry entry, open_listener("shm", name));
  hello["shm"] = entry.listener->address();
  beside.push_back(std::move(entry));
  return {};
}

Status Server::offer_verbs(const Address& address, const std::string& bound, rpc::HelloFields& hello,
                           std::vector<ListenerEntry>& beside) const {
  const auto device = find_device("verbs");
  hello["no_verbs"] = "it has no usable adapter";
  RRPC_RETURN_IF_ERROR(device.status());
  const VerbsPlan plan = plan_verbs((*device)->device->describe(), bound, address.scheme);
  hello["no_verbs"] = "it listens on " + host_of(bound) + ", where no adapter can be reached";
  Status why = invalid_argument(host_of(bound) + " is no adapter's address");
  for (const std::string& host : plan.hosts) {
    auto entry = open_listener("verbs", host + ":0" + address.options());
    if (!entry.ok()) why = entry.status();
    if (!entry.ok() || !add_offer(hello["verbs"], entry->listener->address())) continue;
    beside.push_back(std::move(*entry));
  }
  if (plan.by_socket) {
    auto entry = open_listener("verbs+tcp", host_of(bound) + ":0" + address.options());
    if (!entry.ok()) why = entry.status();
    if (entry.ok()) {
      hello["verbs+tcp"] = port_of(entry->listener->address());
      beside.push_back(std::move(*entry));
    }
  }
  if (hello["verbs"].empty() && hello["verbs+tcp"].empty()) return why;
  hello.erase("no_verbs");
  return {};
}

void Server::add_to_hello(rpc::HelloFields fields) {
  std::lock_guard lock(mutex_);
  more_hello_ = std::move(fields);
}

rpc::HelloFields Server::more_hello() {
  std::lock_guard lock(mutex_);
  return more_hello_;
}

Status Server::share_receives(ListenerEntry& entry) const {
  if (options_.shared_receive_slots == 0) return {};
  auto ring = endpoint::SharedRing::create(*entry.device->device, *entry.listener, options_.shared_receive_slots,
                                           options_.session.geometry.slot_bytes);
  // Where the transport has no such thing each connection has a ring of its own.
  if (ring.status().code() == StatusCode::kFailedPrecondition) return {};
  RRPC_RETURN_IF_ERROR(ring.status());
  entry.receives = std::move(*ring);
  return {};
}

std::shared_ptr<endpoint::SharedRing> Server::shared_ring(const provider::Listener& listener) {
  if (options_.shared_receive_slots == 0) return nullptr;
  std::lock_guard lock(mutex_);
  const auto it = shared_rings_.find(&listener);
  return it == shared_rings_.end() ? nullptr : it->second;
}

Result<std::shared_ptr<provider::TlsContext>> Server::tls_for(const Address& address) {
  auto context = tls_context(address, provider::TlsRole::kServer, options_);
  if (!context.ok() || *context == nullptr) return context;
  std::lock_guard lock(mutex_);
  tls_ = *context;
  return context;
}

std::shared_ptr<provider::TlsContext> Server::tls() {
  std::lock_guard lock(mutex_);
  return tls_;
}

std::string Server::tls_problem() {
  const auto context = tls();
  return context == nullptr ? std::string() : context->reload().message();
}

provider::TlsContext::Refusals Server::tls_refusals() {
  const auto context = tls();
  return context == nullptr ? provider::TlsContext::Refusals() : context->refusals();
}

bool Server::must_be_introduced(const provider::Listener& listener) {
  std::lock_guard lock(mutex_);
  return beside_tls_.contains(&listener);
}

bool Server::offers_shm(const provider::Listener& listener) {
  std::lock_guard lock(mutex_);
  const auto it = offers_.find(&listener);
  return it != offers_.end() && it->second.contains("shm");
}

void Server::prepare(Connection& connection) {
  connection.session().add_to_hello(more_hello());
  if (draining_) connection.session().drain("shutting down");
  if (in_loop_) connection.loops_asleep.push_back(loop_);
}

// Who comes beside a TLS listener proves to be a client that TLS has let in.
Status Server::meet_again(Connection& connection) {
  if (!connection.needs_introduction) return {};
  const provider::QueuePair& queue_pair = connection.session().endpoint().queue_pair();
  RRPC_ASSIGN_OR_RETURN(auto introduced, introductions_.take(connection.session().peer_hello(), connection.transport(),
                                                             queue_pair.end_names(), options_.rdma_security, now_ns()));
  return connection.introduced.emplace(std::move(introduced)).protect(connection.session());
}

static constexpr TimeNs kNamePatience = 250 * kMillisecond;
static constexpr TimeNs kLookAgain = 100 * kMillisecond;

// Before it is let in, so that no call waits for the database. Where the user's groups decide, it waits as long as the
// handshake may take; else a moment, as errors name the user.
bool Server::knows_user(Connection& connection) {
  const auto process = connection.peer_identity().process;
  if (!process || (!options_.clients && !authorization_.has_policy())) return true;
  std::function<void()> then;
  const TimeNs now = now_ns();
  if (connection.awaits_user_since == kNever) {
    connection.awaits_user_since = now;
    then = [weak = connection.weak_from_this(), engine = connection.engine->weak_from_this()] {
      const auto alive = engine.lock();
      if (auto known = weak.lock(); known != nullptr && alive != nullptr) alive->rouse(std::move(known));
    };
  }
  const bool by_group = authorization_.asks_for_groups() || (options_.clients && name_groups(*options_.clients));
  const bool unknown = ask_about(process->uid, std::move(then)) == Knowledge::kNone;
  connection.awaits_user = unknown && (by_group || now - connection.awaits_user_since < kNamePatience);
  if (!connection.awaits_user) return true;
  connection.look_again_at = now + kLookAgain;  // be it that nobody could be asked, or that many wait for the answer
  connection.engine->note_deadline(connection, connection.look_again_at);
  return false;
}

std::optional<Status> Server::admit(Connection& connection) {
  if (!knows_user(connection)) return std::nullopt;
  return admit_known(connection);
}

Status Server::admit_known(Connection& connection) {
  RRPC_RETURN_IF_ERROR(meet_again(connection));
  if (options_.clients && !connection.sent_on) {
    const provider::PeerIdentity client = connection.peer_identity();
    if (!any_proves(*options_.clients, client)) {
      if (!connection.may_prove_user) return authorization_.refuse_client(client);
      // It may prove who it is where it moves to, and can make no calls here.
      connection.session().server().refuse_new_calls(why_client_refused(client));
    }
  }
  const ConnectionRef introducer = connection.introduced ? connection.introduced->introducer() : nullptr;
  const TimeNs now = now_ns();
  if (!admissions_->establish(connection, introducer, deadline_after(now, options_.handshake_timeout))) {
    const std::string limit = std::to_string(options_.connections_max);
    return resource_exhausted("connections_max: the server has " + limit +
                              " clients, as many as may connect (--connections-max " + limit + ")");
  }
  // The timers look at it only once the client is let in.
  connection.engine->note_deadline(connection, connection.retire_at);
  if (introducer != nullptr) introducer->engine->rouse(introducer);  // for when it leaves
  offer_rails(connection);
  if (connection.needs_introduction) return {};
  if (auto introduction = introduction_by(connection.session().endpoint().queue_pair(), tls())) {
    introduction->introducer = connection.weak_from_this();
    introductions_.add(std::move(*introduction), now);
  }
  return {};
}

// To a client over RDMA that asks for it, and whose peer nobody need prove.
void Server::offer_rails(Connection& connection) {
  if (!connection.session().peer_hello().contains(kRailToken)) return;
  if (!connection.transport().starts_with("verbs") || connection.needs_introduction) return;
  if (options_.shared_receive_slots != 0) return;
  rpc::HelloFields fields = more_hello();
  fields[kRailToken] = rail_tokens_.give(connection.shared_from_this());
  connection.session().add_to_hello(std::move(fields));
}

void Server::join_rail(const endpoint::RailOffer& offer, endpoint::RailQueues queues, const std::string& scheme) {
  const ConnectionRef connection = rail_tokens_.find(offer.token);
  const auto engine = connection == nullptr ? nullptr : connection->attended_by.lock();
  if (engine == nullptr || connection->transport() != scheme) {
    queues.queue_pair->disconnect("no connection of this server has this rail's token");
  } else {
    const TimeNs now = now_ns();
    {
      std::lock_guard lock(connection->mutex);
      (void)connection->session().endpoint().add_rail(offer.rail, queues, offer.token,
                                                      deadline_after(now, options_.handshake_timeout));
      engine->settle(connection, now);
    }
    engine->rouse(connection);
  }
  if (queues.queue_pair == nullptr) return;
  auto ended = std::make_shared<endpoint::RailQueues>(std::move(queues));
  (void)run_behind(Behind::kEnds, [ended = std::move(ended)] {});
}

Result<ConnectionRef> Server::accept(DeviceEntry& device, provider::Listener& listener, uint64_t id) {
  const auto ring = shared_ring(listener);
  while (true) {
    Options options = options_;
    Status refusal;
    endpoint::ReceiveShare share;
    if (ring != nullptr) {
      auto reserved = ring->reserve(options.session.geometry.slots);
      refusal = reserved.status();
      // Slots may come back with connections that are being destroyed: the next client waits for those.
      if (!refusal.ok() && waiting_behind(Behind::kEnds) > 0) return refusal;
      if (reserved.ok()) share = std::move(*reserved);
      if (share) options.session.geometry.slots = share.slots();
    }
    auto config = endpoint::queue_pair_config(options.session.geometry);
    if (ring != nullptr) config.shared_receives = &ring->queue();
    auto cq = device.device->create_completion_queue(config.send_depth + config.receive_depth);
    auto offered = listener.accept(*cq, config);
    if (offered.status().code() == StatusCode::kPermissionDenied) continue;  // another user, who was told
    RRPC_RETURN_IF_ERROR(offered.status());
    if (*offered == nullptr || ended_) return ConnectionRef();
    if (const auto rail = endpoint::read_rail_offer((*offered)->peer_private_data())) {
      join_rail(*rail, {std::move(cq), std::move(*offered)}, device.scheme);
      return ConnectionRef();  // others have their turn before the next
    }
    if (!refusal.ok()) {
      (*offered)->disconnect(refusal.message());
      continue;
    }
    rpc::HelloFields hello = hello_of(listener);
    const bool for_others = hello.contains("go_to");
    auto connection = Connection::make(rpc::Role::kServer, id, device, std::move(cq), std::move(*offered), options,
                                       std::move(hello), this, std::move(share));
    std::lock_guard lock(connection->mutex);
    connection->engine = &engine_for(device.scheme, connection->session().endpoint().queue_pair().peer_description());
    connection->needs_introduction = must_be_introduced(listener);
    connection->sent_on = for_others;
    connection->may_prove_user = offers_shm(listener);
    prepare(*connection);
    const TimeNs now = now_ns();
    connection->last_active = now;
    connection->handshake_deadline = deadline_after(now, options_.handshake_timeout);
    connection->retire_at = deadline_after(now, with_jitter(options_.max_connection_age));
    connection->retirable = true;
    if (!connection->session().start(now).ok()) continue;
    if (for_others) connection->session().server().refuse_new_calls(unavailable(kNotHere));
    return connection;
  }
}

}  // namespace rrpc::driver
