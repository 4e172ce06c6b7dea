#include "driver/connection.h"

#include <sys/eventfd.h>

#include <random>
#include <utility>

#include "base/helper_thread.h"
#include "driver/engine.h"
#include "endpoint/counters.h"

namespace rrpc::driver {
namespace {

uint32_t random_epoch() {
  static thread_local std::minstd_rand generator{std::random_device{}()};
  return static_cast<uint32_t>(generator());
}

}  // namespace

Connection::Connection(rpc::Role role, uint64_t id, DeviceEntry& device, std::unique_ptr<provider::CompletionQueue> cq,
                       std::unique_ptr<provider::QueuePair> qp, const Options& options, rpc::HelloFields hello,
                       RequestSink* sink, endpoint::ReceiveShare share)
    : timer(id),
      id_(id),
      role_(role),
      scheme_(device.scheme),
      fork_generation_(fork_generation()),
      options_(options),
      sink_(sink),
      session_(role, device.context(), std::move(cq), std::move(qp), options.session, random_epoch(), std::move(hello),
               *this, std::move(share)),
      polls_cheaply_(session_.endpoint().polls_cheaply()),
      handles_tell_all_(session_.endpoint().handles_tell_all()) {
  endpoint::count(endpoint::counters().connections_open);
}

Connection::~Connection() {
  session_.close(unavailable("the connection was closed"));
  endpoint::count(endpoint::counters().connections_open, -1);
}

void Connection::destroy_behind(Connection* last) {
  if (last->belongs_to_parent()) {
    delete last;
    return;
  }
  const auto destroy = [last] {
    const auto engine = last->attended_by.lock();
    delete last;
    if (engine != nullptr) engine->see_to_deferred();  // Python objects, of which it may not know yet
  };
  // On the helper thread itself at once: whoever waits for its jobs waits for this, too.
  if (runs_behind(Behind::kEnds) || !run_behind(Behind::kEnds, destroy)) destroy();
}

void Connection::release_device_behind() {
  const auto release = [self = shared_from_this()] {
    std::lock_guard lock(self->mutex);
    self->session().endpoint().release_device();
  };
  if (!run_behind(Behind::kEnds, release)) release();
}

// The mutex is held: a sleeper has looked at what it waits for after the last change, or is told of this one.
// Only those who wait for the cause: a thousand streams may share the connection.
void Connection::wake_sleepers(const void* cause) {
  {
    std::lock_guard lock(wait_mutex);
    for (Follower* follower : followers)
      if (cause == nullptr || follower->cause == cause) follower->condition.notify_one();
  }
  if (leader_asleep && (cause == nullptr || leader_cause == cause)) wake_leader();
}

void Connection::wake_leader() {
  leader_asleep = false;
  (void)eventfd_write(leader_kick_fd, 1);
}

void Connection::on_stream_changed(const rpc::StreamRef& stream) {
  if (stream->sleepers.load(std::memory_order_relaxed) > 0) wake_sleepers(stream.get());
  for (const auto& tell : std::exchange(stream->on_change, {})) tell();
  if (stream->parked_as != 0 && stream->has_come(rpc::Awaited::kRoom))
    sink_->resume(std::exchange(stream->parked_as, 0));
}

std::optional<Status> Connection::on_hello() {
  std::optional<Status> why = sink_ == nullptr ? Status() : sink_->admit(*this);
  refused_ = why && !why->ok();
  return why;
}

void Connection::complete_hello(rpc::HelloFields& own) {
  if (introduced) introduced->add_proof(session_.endpoint().queue_pair().end_names(), own);
}

provider::PeerIdentity Connection::peer_identity() {
  provider::PeerIdentity identity = session_.endpoint().queue_pair().peer_identity();
  if (introduced) identity.certificate = introduced->peer().certificate;
  return identity;
}

// Before anybody else can use it: what the server's HELLO has no proof of ends the connection here, and what follows is
// protected.
void Connection::meet_server() {
  const rpc::HelloFields& hello = session_.peer_hello();
  Status proved = rpc::refusal_in(hello);
  if (proved.ok()) proved = introduced->check_proof(session_.endpoint().queue_pair().end_names(), hello);
  if (proved.ok()) proved = introduced->protect(session_);
  if (!proved.ok()) session_.close(proved);
}

void Connection::on_ready() {
  if (introduced && role_ == rpc::Role::kClient) meet_server();
  if (session_.failed()) return;
  ready.store(true);
  usable.store(session_.makes_calls());
  wake_sleepers(nullptr);
}

void Connection::on_closed(const Status&) {
  closed.store(true);
  wake_sleepers(nullptr);
}

void Connection::retire(TimeNs now, const std::string& reason) {
  retirable = false;
  retire_at = kNever;
  close_at = deadline_after(now, options_.max_connection_age_grace);
  session_.drain(reason);
}

void Connection::on_no_more_calls() {
  usable.store(false);
  for (const auto& tell : std::exchange(on_unusable, {})) tell();
}

void Connection::on_call_done(const rpc::ClientCallRef& call) {
  if (call->watched.load(std::memory_order_relaxed)) wake_sleepers(call.get());
  if (call->on_done) std::exchange(call->on_done, nullptr)();
}

void Connection::on_request(const rpc::ServerCallRef& call) {
  if (sink_ != nullptr) sink_->on_request(shared_from_this(), call);
}

void Connection::on_replies_taken() {
  if (sink_ != nullptr) sink_->on_replies_taken(*this);
}

}  // namespace rrpc::driver
