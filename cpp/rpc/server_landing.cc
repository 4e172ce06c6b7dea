// How the arguments of a call come: when there is landing memory for them, in the order of the calls. Until then the
// call is its message. Nothing that waits for memory holds any.
#include <utility>

#include "rpc/client_side.h"
#include "rpc/server_side.h"

namespace rrpc::rpc {

Status ServerSide::queue_is_full() const {
  return resource_exhausted("queued_bytes_max: the messages of " + std::to_string(shares_.queued.used()) +
                            " bytes that wait here leave no room for this one; the limit is " +
                            std::to_string(shares_.queued.limit()) +
                            " for a connection, less where many use it (--queued-bytes-max); try again later");
}

void ServerSide::await_landing(const ServerCallRef& call, size_t bytes, std::function<void(TimeNs)> go, bool first) {
  call->state_ = ServerCall::State::kWaiting;
  call->expires_at_ = call->deadline_;
  earliest_expiry_ = std::min(earliest_expiry_, call->expires_at_);
  calls_.add(call->id_, call);
  endpoint_.tally(&endpoint::Counters::landing_waits);
  call->seldom_.write().landing_ticket = shares_.landing.wait(
      bytes,
      [call, go = std::move(go)](Charge charge, TimeNs now) {
        call->seldom_.write().landing_ticket = 0;
        call->seldom_.write().landed = std::move(charge);
        go(now);
      },
      first);
}

void ServerSide::fetch_body(const ServerCallRef& call, size_t bytes, TimeNs now) {
  if (shares_.landing.enter(bytes, call->seldom_.write().landed)) return start_body(call, now);
  await_landing(call, bytes, [this, call](TimeNs then) { start_body(call, then); });
}

void ServerSide::start_body(const ServerCallRef& call, TimeNs now) {
  const BulkBody& bulk = call->seldom_->bulk;
  auto block = endpoint_.allocate(bulk.length_bytes, endpoint::BlockKind::kLanding);
  Status status = block.status();
  endpoint::RegionRef region;
  if (block.ok()) {
    const endpoint::PoolBlock& body = call->seldom_.write().body_block = std::move(*block);
    auto found = endpoint_.sink_region_for(body.data(), body.size());
    status = found.status();
    if (found.ok()) region = std::move(*found);
  }
  if (!status.ok()) {
    shares_.landing.fetch_ended(call->seldom_->landed.bytes());
    return refuse(call, std::move(status), now);
  }
  call->state_ = ServerCall::State::kFetchingBody;
  calls_.add(call->id_, call);
  endpoint::SealRef seal;
  if (endpoint_.seals()) seal = parse_bulk(call->body_.view(), true)->seal;  // well formed before, too
  endpoint_.start_transfer(call->id_ | kServerCookie, provider::Opcode::kRead,
                           {{call->seldom_->body_block.data(), std::move(region), bulk.address, bulk.rkey,
                             bulk.length_bytes, std::move(seal)}});
}

// What the client lends is read where it is, and takes no landing memory.
//
// A body that was fetched and whose arguments have no room now is dropped, and fetched again with them: what waits
// holds no memory, so that no two calls ever wait for what the other has.
Status ServerSide::fetch_arguments(const ServerCallRef& call, std::span<const endpoint::Descriptor> descriptors,
                                   TimeNs now) {
  close_by_reply(*call, descriptors.front().rkey);
  if (borrow_lent(endpoint_, descriptors, call->blocks_)) {
    calls_.add(call->id_, call);
    return hand_over(call, now), Status();
  }
  const size_t body_bytes =
      call->seldom_->body_block ? endpoint::Pool::block_bytes(call->seldom_->bulk.length_bytes) : 0;
  const size_t bytes = body_bytes + landing_bytes(descriptors, call->blocks_);
  if (Status status = shares_.landing.check(bytes); !status.ok()) return refuse(call, std::move(status), now), Status();
  if (body_bytes > 0) {
    if (shares_.landing.grow(call->seldom_.write().landed, bytes)) {
      shares_.landing.fetch_begins(call->seldom_->landed.bytes());
      return start_arguments(call, descriptors, now), Status();
    }
    call->method_ = {};
    call->metadata_ = call->payload_ = {};
    call->seldom_.write().body_block = {};
    call->seldom_.write().landed = {};  // what was borrowed stays: it can be borrowed once
    await_landing(call, bytes, [this, call](TimeNs then) { start_body(call, then); }, true);
    return {};
  }
  if (shares_.landing.enter(bytes, call->seldom_.write().landed))
    return start_arguments(call, descriptors, now), Status();
  await_landing(call, bytes, [this, call](TimeNs then) {
    ParsedRequest request;
    (void)parse_request(call->body_.view(), request, endpoint_.seals());  // well formed before, too
    start_arguments(call, request.descriptors, then);
  });
  return {};
}

void ServerSide::start_arguments(const ServerCallRef& call, std::span<const endpoint::Descriptor> descriptors,
                                 TimeNs now) {
  auto segments = prepare_landing(endpoint_, descriptors, {}, call->blocks_);
  if (!segments.ok()) {
    shares_.landing.fetch_ended(call->seldom_->landed.bytes());
    return refuse(call, segments.status(), now);
  }
  call->state_ = ServerCall::State::kFetching;
  calls_.add(call->id_, call);
  endpoint_.start_transfer(call->id_ | kServerCookie, provider::Opcode::kRead, std::move(*segments));
}

}  // namespace rrpc::rpc
