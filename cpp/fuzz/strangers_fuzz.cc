// Everything that our own code parses before it knows who the peer is, on the bytes of a stranger. The first byte picks
// the transport and the end; the rest is what came over its socket, in frames as they come. Over TLS, OpenSSL parses
// first, and the HELLO comes from a peer whose certificate was verified.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "driver/introductions.h"
#include "endpoint/endpoint.h"
#include "provider/shm/wire.h"
#include "provider/tcp/frame.h"
#include "rpc/messages.h"
#ifdef RRPC_FUZZ_VERBS
#include "provider/verbs/introduction.h"
#endif

namespace rrpc {
namespace {

// Reading each byte lets AddressSanitizer tell whether it lies within the input.
void read(Bytes part) {
  for (const std::byte byte : part) {
    volatile auto seen = byte;
    (void)seen;
  }
}

// An error goes to the peer and to logs: one line, and not the peer's own megabyte.
void check(const Status& why) {
  constexpr size_t kLongest = 400;
  if (why.message().size() > kLongest) __builtin_trap();
  for (const char c : why.message())
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) __builtin_trap();
}

// One that another client has used up, and one that waits.
driver::Introductions& introductions() {
  static driver::Introductions made;
  static const bool filled = [] {
    made.add({.id = "used", .key = {}, .tls = nullptr, .peer = {}}, 0);
    made.add({.id = "waits", .key = {}, .tls = nullptr, .peer = {}}, 0);
    return made.use_up("used");
  }();
  if (!filled) __builtin_trap();
  return made;
}

void take_hello(Bytes body) {
  const auto hello = rpc::parse_hello(body);
  check(hello.status());
  if (!hello.ok()) return;
  check(driver::asked_protection(*hello).status());
  const std::string id = driver::introduction_id(*hello);
  if (introductions().find(id, 0).has_value() != (id == "waits")) __builtin_trap();
  for (const auto& [name, value] : *hello) {
    if (name == "window") check(rpc::parse_window(value).status());
    if (name == "buffers") check(rpc::parse_buffers_max(value).status());
  }
}

// The header as the endpoint reads it, then HELLO: what a SEND brings before the peer is known.
void take_message(Bytes message) {
  ByteReader reader(message);
  const auto header = reader.read<endpoint::MessageHeader>();
  if (reader.failed() || header.magic != endpoint::kHeaderMagic || header.type != rpc::kHello) return;
  if (header.body_bytes == reader.remaining()) take_hello(reader.rest());
}

void take_offer(Bytes private_data) {
  const auto offer = endpoint::read_offer(private_data);
  check(offer.status());
  if (offer.ok() && !endpoint::validate({offer->slots, offer->slot_bytes, 1}).ok()) __builtin_trap();
}

void speak_tcp(Bytes bytes, bool server) {
  using namespace provider::tcp;  // NOLINT(google-build-using-namespace)
  if (bytes.empty()) return;
  check(check_magic(bytes, server));
  ByteReader reader(bytes);
  while (reader.remaining() >= kFrameHeaderBytes) {
    const auto header = decode_header(reader.take(kFrameHeaderBytes));
    check(header.status());
    if (!header.ok()) return;
    const Bytes payload = reader.take(header->payload_bytes());
    if (reader.failed()) return;
    read(payload);
    if (header->type == FrameType::kSend) take_message(payload);
    if (header->type != FrameType::kSetup) continue;
    const auto setup = decode_setup_body(payload);
    check(setup.status());
    if (setup.ok()) take_offer(setup->private_data);
  }
}

void take_shm(const provider::shm::Received& message) {
  using namespace provider::shm;  // NOLINT(google-build-using-namespace)
  read(message.payload);
  switch (message.type) {
    case MessageType::kSetup: {
      const auto setup = decode_setup(message.payload);
      check(setup.status());
      if (setup.ok()) take_offer(Bytes(setup->private_data).first(setup->private_bytes));
      return;
    }
    case MessageType::kReady:
      return check(decode_ready(message.payload).status());
    case MessageType::kSlab:
      return check(decode_slab(message.payload).status());
    case MessageType::kDropSlab:
      return check(decode_drop_slab(message.payload).status());
    case MessageType::kReadyBits:
      return check(decode_ready_bits(message.payload).status());
    case MessageType::kGoodbye: {
      const auto goodbye = decode_goodbye(message.payload);
      check(goodbye.status());
      if (goodbye.ok()) check({goodbye->code, goodbye->reason.substr(0, 100)});
      return;
    }
    case MessageType::kDoorbell:
      return;
  }
}

void speak_shm(Bytes bytes) {
  using namespace provider::shm;  // NOLINT(google-build-using-namespace)
  const auto begun = check_preamble(bytes);
  check(begun.status());
  if (!begun.ok() || !*begun) return;
  bytes = bytes.subspan(kPreambleBytes);
  for (;;) {
    const auto message = parse_message(bytes);
    check(message.status());
    if (!message.ok() || !message->has_value()) return;
    take_shm(**message);
    bytes = bytes.subspan((*message)->bytes());
  }
}

#ifdef RRPC_FUZZ_VERBS
void speak_verbs(Bytes bytes) {
  using namespace provider::verbs;  // NOLINT(google-build-using-namespace)
  std::vector<std::byte> received(bytes.begin(), bytes.end());
  for (;;) {
    const size_t before = received.size();
    const auto frame = take_frame(received);
    check(frame.status());
    if (!frame.ok() || !frame->has_value()) return;
    if (received.size() >= before) __builtin_trap();
    (void)goodbye_reason(**frame);
    const auto introduction = parse_introduction(**frame);
    check(introduction.status());
    if (!introduction.ok()) continue;
    take_offer(introduction->private_data);
    // What was read is written and read the same again.
    std::vector<std::byte> written = introduction_frame(*introduction);
    const auto again = take_frame(written);
    if (!again.ok() || !again->has_value() || (*again)->body != (*frame)->body) __builtin_trap();
  }
}
#else
void speak_verbs(Bytes) {}
#endif

void speak(uint8_t how, Bytes bytes) {
  switch (how % 6) {
    case 0:
      return speak_tcp(bytes, true);
    case 1:
      return speak_tcp(bytes, false);
    case 2:
      return speak_shm(bytes);
    case 3:
      return speak_verbs(bytes);
    case 4:
      return take_offer(bytes);
    default:
      return take_hello(bytes);
  }
}

}  // namespace
}  // namespace rrpc

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t length_bytes) {
  if (length_bytes == 0) return 0;
  // In memory of its own, so that a byte past the end is seen.
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, length_bytes - 1);
  rrpc::speak(data[0], rrpc::as_bytes(bytes));
  return 0;
}
