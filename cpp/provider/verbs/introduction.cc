#include "provider/verbs/introduction.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/text.h"
#include "provider/provider.h"

namespace rrpc::provider::verbs {
namespace {

constexpr uint32_t kMagic = 0x62767272;  // "rrvb"
constexpr uint8_t kVersion = 2;
constexpr size_t kHeaderBytes = 8;
constexpr size_t kBodyBytesMax = 512;

std::vector<std::byte> frame_of(FrameKind kind, Bytes body) {
  std::vector<std::byte> frame(kHeaderBytes + body.size());
  ByteWriter writer(frame);
  writer.write(kMagic);
  writer.write(kVersion);
  writer.write(kind);
  writer.write(static_cast<uint16_t>(body.size()));
  writer.write_bytes(body);
  return frame;
}

}  // namespace

std::vector<std::byte> introduction_frame(const Introduction& introduction) {
  std::byte body[kBodyBytesMax];
  ByteWriter writer(body);
  writer.write(introduction.queue_pair);
  writer.write(introduction.packet_sequence);
  writer.write(introduction.lid);
  writer.write(introduction.link_layer);
  writer.write(introduction.mtu);
  writer.write(introduction.gid.raw);
  writer.write(introduction.responder_resources);
  writer.write(introduction.initiator_depth);
  writer.write(introduction.check_address);
  writer.write(introduction.check_rkey);
  writer.write(introduction.check_seed);
  writer.write(introduction.ece);
  writer.write(introduction.not_ready_retries);
  writer.write(static_cast<uint8_t>(introduction.private_data.size()));
  writer.write_bytes(introduction.private_data);
  return frame_of(FrameKind::kIntroduction, writer.written());
}

Result<Introduction> parse_introduction(const Frame& frame) {
  ByteReader reader(frame.body);
  Introduction introduction;
  introduction.queue_pair = reader.read<uint32_t>();
  introduction.packet_sequence = reader.read<uint32_t>();
  introduction.lid = reader.read<uint16_t>();
  introduction.link_layer = reader.read<uint8_t>();
  introduction.mtu = reader.read<uint8_t>();
  introduction.gid = reader.read<ibv_gid>();
  introduction.responder_resources = reader.read<uint16_t>();
  introduction.initiator_depth = reader.read<uint16_t>();
  introduction.check_address = reader.read<uint64_t>();
  introduction.check_rkey = reader.read<uint32_t>();
  introduction.check_seed = reader.read<uint64_t>();
  introduction.ece = reader.read<Ece>();
  introduction.not_ready_retries = reader.read<uint8_t>();
  const Bytes private_data = reader.take(reader.read<uint8_t>());
  introduction.private_data.assign(private_data.begin(), private_data.end());
  constexpr uint32_t kNumberBits = 24;
  constexpr uint8_t kRetriesMax = 7;  // three bits
  const bool sound = !reader.failed() && reader.remaining() == 0 && frame.kind == FrameKind::kIntroduction &&
                     introduction.queue_pair >> kNumberBits == 0 && introduction.packet_sequence >> kNumberBits == 0 &&
                     introduction.mtu >= IBV_MTU_256 && introduction.mtu <= IBV_MTU_4096 &&
                     introduction.not_ready_retries <= kRetriesMax && private_data.size() <= kPrivateDataBytesMax;
  if (!sound) return Status::protocol_error("the peer introduced its queue pair with a malformed message");
  return introduction;
}

std::vector<std::byte> ready_frame() { return frame_of(FrameKind::kReady, {}); }

std::vector<std::byte> goodbye_frame(const std::string& reason) {
  return frame_of(FrameKind::kGoodbye, as_bytes(cut_text(reason, kBodyBytesMax)));
}

std::string goodbye_reason(const Frame& frame) { return one_line(as_text(frame.body)); }

void FrameSocket::send(const std::vector<std::byte>& frame) {
  unsent_.insert(unsent_.end(), frame.begin(), frame.end());
  flush();
}

void FrameSocket::flush() {
  while (!unsent_.empty()) {
    const ssize_t sent = ::send(fd_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (sent < 0) return unsent_.clear();
    unsent_.erase(unsent_.begin(), unsent_.begin() + sent);
  }
}

void FrameSocket::finish() { ::shutdown(fd_.get(), SHUT_WR); }

Result<std::optional<Frame>> FrameSocket::receive() {
  while (true) {
    Result<std::optional<Frame>> frame = take_frame(received_);
    if (!frame.ok() || frame->has_value()) return frame;
    std::byte bytes[kHeaderBytes + kBodyBytesMax];
    const ssize_t count = ::recv(fd_.get(), bytes, sizeof(bytes), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::optional<Frame>();
    if (count < 0) return unavailable(std::string("the peer's socket failed: ") + std::strerror(errno));
    if (count == 0) return unavailable("the peer closed the connection");
    received_.insert(received_.end(), bytes, bytes + count);
  }
}

Result<std::optional<Frame>> take_frame(std::vector<std::byte>& received) {
  if (received.size() < kHeaderBytes) {
    // What isn't ours shows as early as its first bytes: an HTTP client sends fewer than it then waits for.
    const size_t known = std::min(received.size(), sizeof(kMagic));
    if (known == 0 || std::memcmp(received.data(), &kMagic, known) == 0) return std::optional<Frame>();
    return Status::protocol_error(
        "the peer doesn't speak verbs+tcp; is that the port of an rrpc server's verbs+tcp://?");
  }
  ByteReader reader(received);
  if (reader.read<uint32_t>() != kMagic) {
    return Status::protocol_error(
        "the peer doesn't speak verbs+tcp; is that the port of an rrpc server's verbs+tcp://?");
  }
  if (const auto version = reader.read<uint8_t>(); version != kVersion) {
    return Status::protocol_error("the peer speaks version " + std::to_string(version) + " of verbs+tcp, this end " +
                                  std::to_string(kVersion) + "; install the same rrpc on both ends");
  }
  Frame frame;
  frame.kind = reader.read<FrameKind>();
  const auto body_bytes = reader.read<uint16_t>();
  if (frame.kind < FrameKind::kIntroduction || frame.kind > FrameKind::kGoodbye || body_bytes > kBodyBytesMax) {
    return Status::protocol_error("the peer sent a malformed verbs+tcp message");
  }
  const Bytes body = reader.take(body_bytes);
  if (reader.failed()) return std::optional<Frame>();
  frame.body.assign(body.begin(), body.end());
  received.erase(received.begin(), received.begin() + static_cast<ptrdiff_t>(kHeaderBytes + body_bytes));
  return std::optional<Frame>(std::move(frame));
}

}  // namespace rrpc::provider::verbs
