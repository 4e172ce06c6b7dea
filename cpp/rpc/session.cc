#include "rpc/session.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/text.h"

namespace rrpc::rpc {

static constexpr size_t kRefusalBytesMax = 200;  // the smallest slot has room for it beside the other fields

constexpr char kServes[] = "serves";
constexpr char kBorrows[] = "borrows";  // the end that says so takes descriptors of lent ranges
constexpr TimeNs kProbeStep = 250 * kMillisecond;

Session::Session(Role role, endpoint::DeviceContext context, std::unique_ptr<provider::CompletionQueue> cq,
                 std::unique_ptr<provider::QueuePair> qp, const SessionOptions& options, uint32_t epoch,
                 HelloFields hello, SessionEvents& events, endpoint::ReceiveShare share)
    : role_(role),
      options_(options),
      budgets_(options.budgets != nullptr ? options.budgets : Budgets::process()),
      hello_(std::move(hello)),
      takes_calls_(role == Role::kServer || hello_.contains(kServes)),
      makes_calls_(role == Role::kClient),
      events_(events),
      endpoint_(context, std::move(cq), std::move(qp), options.geometry, epoch, *this, std::move(share)),
      landing_(std::make_shared<Account>(budgets_, &Budgets::landing, options.landing_bytes_max)),
      queued_(std::make_shared<Account>(budgets_, &Budgets::queued, options.queued_bytes_max)),
      exposed_(std::make_shared<Account>(budgets_, &Budgets::exposed,
                                         options.exposed_bytes_max == 0 ? SIZE_MAX : options.exposed_bytes_max)),
      streams_(endpoint_, options_, {landing_, queued_, exposed_}, events),
      client_(endpoint_, streams_, options_, events),
      server_(endpoint_, streams_, options_, {landing_, queued_, exposed_}, events) {
  endpoint_.set_descriptors_max(kBuffersMaxUnsaid);
}

Session::~Session() {
  endpoint_.close(unavailable("the connection was closed"));
  endpoint_.destroy_queue_pair();  // before the calls, whose memory it works on
}

Status Session::start(TimeNs now) {
  now_ = last_heard_ = now;
  streams_.set_now(now);
  return endpoint_.start();
}

// Items and the rest take the first of the credits in turn, so that neither starves the other.
inline void Session::flush(TimeNs now) {
  items_first_ = !items_first_;
  if (items_first_) streams_.flush();
  if (makes_calls_) client_.flush(now);
  if (takes_calls_) server_.flush(now);
  if (!items_first_) streams_.flush();
}

inline size_t Session::progress_now(TimeNs now) {
  now_ = now;
  streams_.set_now(now);
  const uint64_t signs = endpoint_.signs_of_life();
  streams_.flush();  // items may have waited for more to share a message with
  size_t handled = endpoint_.progress();
  if (hello_waits_ && !failed()) {
    if (const Status status = answer_hello(); !status.ok()) close(status);
    if (!hello_waits_) ++handled;
  }
  if (landing_.runnable() && !failed()) handled += landing_.pump(now);
  if (handled == 0) return 0;
  if (endpoint_.signs_of_life() != signs) {  // sends that went out are none
    last_heard_ = now;
    probe_sent_ = kNever;
    ping_owed_ = false;
  }
  if (failed()) return handled;
  if (ping_owed_ || pong_owed_ || go_away_owed_ || go_away_ack_owed_) send_owed();
  flush(now);
  return handled;
}

// What it sends goes out with one doorbell, together with what has waited for one.
size_t Session::progress(TimeNs now) {
  try {
    size_t handled = 0;
    {
      const endpoint::Endpoint::Holding holding(endpoint_, true);
      handled = progress_now(now);
    }
    endpoint_.ring();
    return handled;
  } catch (const std::bad_alloc&) {
    endpoint_.close(out_of_memory());
    return 1;
  }
}

void Session::close(const Status& reason) {
  if (!failed()) send_held();
  endpoint_.close(reason);
}

void Session::send_held() {
  try {
    streams_.flush();
    endpoint_.ring();
  } catch (const std::bad_alloc&) {
    endpoint_.close(out_of_memory());
  }
}

void Session::on_established() {
  // The client speaks first (an iWARP rule that holds everywhere).
  if (role_ == Role::kClient) send_hello();
}

void Session::send_hello() {
  if (!endpoint_.can_send(kHello)) return;  // it died already, which progress() is about to find
  HelloFields own = hello_;
  own["window"] = encode_window({options_.stream_window_items, options_.stream_window_bytes});
  own["buffers"] = std::to_string(options_.buffers_max);
  own[kBorrows] = "1";
  if (!own.contains(kRefused)) events_.complete_hello(own);
  std::string body = encode_hello(own);
  for (const auto& [name, value] : more_hello_) {
    const std::string field = encode_hello({{name, value}});
    if (body.size() + field.size() <= endpoint_.body_bytes_max()) body += field;
  }
  const Bytes part = as_bytes(body);
  note_hello(part);
  endpoint_.send(kHello, {&part, 1});
}

Status Session::answer_hello() {
  const std::optional<Status> admitted = events_.on_hello();
  hello_waits_ = !admitted;
  if (!admitted) return {};
  if (!admitted->ok()) {
    server_.refuse_new_calls(*admitted);
    hello_ = {{"wire", "1"},
              {kRefused, std::string(cut_text(admitted->message(), kRefusalBytesMax))},
              {kRefusedAs, std::to_string(static_cast<int>(admitted->code()))}};
    more_hello_.clear();
    wanted_protection_.reset();
  }
  send_hello();
  return get_ready();
}

Status Session::get_ready() {
  ready_ = true;
  RRPC_RETURN_IF_ERROR(start_protection());
  events_.on_ready();
  hellos_ = {};
  return {};
}

Status Session::on_hello(Bytes body) {
  if (ready_ || hello_waits_) return Status::protocol_error("a second HELLO");
  RRPC_ASSIGN_OR_RETURN(peer_hello_, parse_hello(body));
  note_hello(body);
  if (const auto window = peer_hello_.find("window"); window != peer_hello_.end()) {
    RRPC_ASSIGN_OR_RETURN(const StreamWindow parsed, parse_window(window->second));
    streams_.set_peer_window(parsed);
  }
  uint32_t buffers_max = kBuffersMaxUnsaid;
  if (const auto buffers = peer_hello_.find("buffers"); buffers != peer_hello_.end()) {
    RRPC_ASSIGN_OR_RETURN(buffers_max, parse_buffers_max(buffers->second));
  }
  endpoint_.set_descriptors_max(std::min(buffers_max, options_.buffers_max));
  if (peer_hello_.contains(kBorrows))
    endpoint_.set_lending(options_.lent_bytes_max == 0 ? SIZE_MAX : options_.lent_bytes_max);
  makes_calls_ = makes_calls_ || peer_hello_.contains(kServes);
  return role_ == Role::kServer ? answer_hello() : get_ready();
}

Status Session::on_message(uint8_t type, Bytes body) {
  if (type == kRequest && ready_ && takes_calls_) return server_.on_request(body, now_);
  if (type == kReply && ready_ && makes_calls_) return client_.on_reply(body);
  return on_other_message(type, body);
}

Status Session::on_other_message(uint8_t type, Bytes body) {
  if (type == kHello) return on_hello(body);
  if (!ready_) return Status::protocol_error("a message of type " + std::to_string(type) + " before HELLO");
  switch (type) {
    case kRequest:
    case kReply:
      break;
    case kRequestBulk:
      if (takes_calls_) return server_.on_request_bulk(body, now_);
      break;
    case kCancel:
      if (takes_calls_) return server_.on_cancel(body, now_);
      break;
    case kDone:
      if (takes_calls_) return server_.on_done(body, now_);
      break;
    case kReplyBulk:
      if (makes_calls_) return client_.on_reply_bulk(body);
      break;
    case kCancelAck:
      if (makes_calls_) return client_.on_cancel_ack(body);
      break;
    case kGoAway:
      if (makes_calls_) return on_go_away(body);
      break;
    case kItem:
    case kItemBulk:
      return on_item(type, body);
    case kWindow:
      return on_windows(body);
    case kGoAwayAck:
      if (!takes_calls_) break;
      if (!go_away_sent_) return Status::protocol_error("an answer to a GOAWAY that never was");
      drained_ = true;
      return {};
    case kPing:
      pong_owed_ = true;
      return {};
    case kPong:
      return {};
    default:
      return Status::protocol_error("unknown message type " + std::to_string(type));
  }
  return Status::protocol_error("a message of type " + std::to_string(type) + " that only the other end may send");
}

// Whose half a call belongs to tells who sent what is for it.
Result<StreamRef> Session::stream_of(uint64_t wire_id) {
  const bool by_answering = (wire_id & kAnsweringBit) != 0;
  return by_answering ? client_.stream_of(wire_id & ~kAnsweringBit) : server_.stream_of(wire_id);
}

Status Session::on_item(uint8_t type, Bytes body) {
  ByteReader reader(body);
  const auto wire_id = reader.read<uint64_t>();
  if (reader.failed()) return Status::protocol_error("a truncated item message");
  RRPC_ASSIGN_OR_RETURN(const StreamRef stream, stream_of(wire_id));
  if (stream == nullptr) return {};
  return type == kItem ? streams_.on_item(stream, body) : streams_.on_item_bulk(stream, body);
}

Status Session::on_windows(Bytes body) {
  RRPC_ASSIGN_OR_RETURN(const std::vector<WindowEntry> entries, parse_windows(body));
  for (const WindowEntry& entry : entries) {
    RRPC_ASSIGN_OR_RETURN(const StreamRef stream, stream_of(entry.call_id));
    if (stream != nullptr) RRPC_RETURN_IF_ERROR(streams_.on_window(stream, entry));
  }
  return {};
}

Status Session::on_go_away(Bytes body) {
  const std::string peer = role_ == Role::kClient ? "the server" : "the client";
  client_.refuse_new_calls(unavailable(peer + " takes no new calls: " + one_line(as_text(body))));
  go_away_ack_owed_ = true;
  events_.on_no_more_calls();
  return {};
}

void Session::on_transfer_finished(uint64_t cookie, provider::WcStatus status) {
  if ((cookie & kItemCookie) != 0) {
    if (const Status item = streams_.on_transfer_finished(cookie & ~kItemCookie, status); !item.ok())
      endpoint_.close(item);
    return;
  }
  const Status result = (cookie & kServerCookie) != 0
                            ? server_.on_transfer_finished(cookie & ~kServerCookie, status, now_)
                            : client_.on_transfer_finished(cookie, status);
  if (!result.ok()) endpoint_.close(result);
}

void Session::on_failed(const Status& status) {
  // A protocol violation is told as what it was; every other end of a connection is Unavailable.
  const Status told = status.is_protocol_error() ? status : unavailable(status.message());
  landing_.clear();
  events_.on_no_more_calls();
  streams_.fail_all();
  client_.fail_all(told);
  server_.fail_all();
  events_.on_closed(told);
}

void Session::drain(const std::string& reason) {
  const std::string self = role_ == Role::kServer ? "the server" : "the client";
  server_.refuse_new_calls(unavailable(self + " takes no new calls: " + reason));
  go_away_reason_ = reason;
  go_away_owed_ = !(ready_ && endpoint_.can_send(kGoAway));
  if (go_away_owed_ || failed()) return;
  const Bytes part = as_bytes(cut_text(reason, endpoint_.body_bytes_max()));
  go_away_sent_ = true;
  endpoint_.send(kGoAway, {&part, 1});
}

// False: there is no credit, or no send buffer, for it now.
bool Session::send_control(uint8_t type) {
  if (!endpoint_.can_send(type)) return false;
  endpoint_.send(type, {});
  return true;
}

// The peer has all its time from when the PING really goes out.
void Session::send_owed() {
  if (ping_owed_ && send_control(kPing)) {
    ping_owed_ = false;
    probe_sent_ = now_;
  }
  if (pong_owed_) pong_owed_ = !send_control(kPong);
  if (go_away_owed_) drain(go_away_reason_);
  if (go_away_ack_owed_) go_away_ack_owed_ = !send_control(kGoAwayAck);
}

void Session::probe(TimeNs now) {
  if (!ready_ || options_.keepalive_interval == kNever) return;
  if (probe_sent_ == kNever) {
    if (now - last_heard_ < options_.keepalive_interval) return;
    probe_sent_ = now;
    ping_owed_ = !send_control(kPing);
  } else if (now - probe_sent_ >= options_.keepalive_timeout) {
    end_silent_peer((now - last_heard_) / kSecond);
  }
}

// Without a credit for the PING the peer owed a sign of life anyway. Without a buffer the device has completed no send
// for keepalive_timeout.
void Session::end_silent_peer(TimeNs silent_seconds) {
  const bool starved = ping_owed_ && endpoint_.lacks_send_buffers();
  endpoint_.close(unavailable("the peer has been silent for " + std::to_string(silent_seconds) + " s and " +
                              (starved ? "the keep-alive probe found no send buffer: no earlier message is done"
                                       : "does not answer keep-alive probes")));
}

// What a READ or a WRITE works on is the device's until it completes: only the connection's end takes it back from a
// peer that doesn't let it complete.
void Session::check_fetches(TimeNs now) {
  if (options_.fetch_timeout == kNever || now < deadline_after(fetches_checked_, fetch_check_interval())) return;
  fetches_checked_ = now;
  if (!endpoint_.transfers_stalled(now, options_.fetch_timeout)) return;
  const std::string nothing_came = "for " + std::to_string(options_.fetch_timeout / kMillisecond) +
                                   " ms nothing came of memory that is being fetched from it";
  const bool answers = now - last_heard_ < options_.fetch_timeout;
  endpoint_.close(answers ? deadline_exceeded("fetch_timeout: the peer answers, but " + nothing_came +
                                              "; raise fetch_timeout if the path is that slow")
                          : unavailable("fetch_timeout: the peer is silent, and " + nothing_came));
}

void Session::tick(TimeNs now) {
  now_ = now;
  streams_.set_now(now);
  if (failed()) return;
  probe(now);
  if (endpoint_.transfers_under_way()) check_fetches(now);
  if (failed()) return;
  client_.expire(now);
  server_.expire(now);
  server_.looked_for_done(now);
  endpoint_.expire_rails(now);
  if (landing_.runnable()) landing_.pump(now);
}

TimeNs Session::next_tick() const {
  TimeNs next = std::min(client_.next_deadline(), server_.next_expiry());
  if (!ready_ || failed()) return next;
  if (landing_.runnable()) return now_;
  next = std::min(next, endpoint_.next_rail_deadline());
  if (endpoint_.transfers_under_way()) next = std::min(next, deadline_after(fetches_checked_, fetch_check_interval()));
  const TimeNs probe_at = probe_sent_ == kNever ? deadline_after(last_heard_, options_.keepalive_interval)
                                                : deadline_after(probe_sent_, options_.keepalive_timeout);
  if (probe_at == kNever) return next;
  // In steps, so that a thousand idle connections are probed in a few batches.
  return std::min(next, (probe_at / kProbeStep + 1) * kProbeStep);
}

}  // namespace rrpc::rpc
