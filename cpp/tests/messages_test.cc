// Any bytes either parse or give a protocol error that says why; what is encoded parses back.
#include "rpc/messages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/limits.h"
#include "parsed.h"
#include "provider/sim/rng.h"

namespace rrpc::rpc {
namespace {

using endpoint::Descriptor;
using provider::sim::Rng;
using testing::parsed_reply;
using testing::parsed_request;

template <typename T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}
// A copy of exactly the right size, so that a sanitizer sees a read past its end.
template <typename Parse>
void parses_or_says_why(Parse parse, const std::string& text) {
  const std::vector<std::byte> exact(as_bytes(text).begin(), as_bytes(text).end());
  const auto result = parse(Bytes(exact));
  if (result.ok()) return;
  EXPECT_TRUE(result.status().is_protocol_error());
  EXPECT_FALSE(result.status().message().empty());
}
void try_all(const std::string& text) {
  parses_or_says_why(parsed_request, text);
  parses_or_says_why(parsed_reply, text);
  for (const bool sealed : {false, true}) {
    parses_or_says_why([sealed](Bytes body) { return parse_bulk(body, sealed); }, text);
    parses_or_says_why([sealed](Bytes body) { return parse_item_bulk(body, sealed); }, text);
  }
  parses_or_says_why(parse_call_ids, text);
  parses_or_says_why(parse_hello, text);
}

std::string random_text(Rng& rng, int64_t length_max) {
  std::string text(static_cast<size_t>(rng.between(0, length_max)), '\0');
  for (char& c : text) c = static_cast<char>(rng.next());
  return text;
}
std::vector<Descriptor> random_descriptors(Rng& rng, int64_t count) {
  std::vector<Descriptor> list(static_cast<size_t>(count));
  for (Descriptor& descriptor : list) {
    descriptor = {rng.next() >> 1, rng.next() & 0xffffffff, static_cast<uint32_t>(rng.next()), rng.chance(0.5),
                  rng.chance(0.5)};
    if (rng.chance(0.3)) descriptor.rail_keys = {static_cast<uint32_t>(rng.next()), 0, 1};
  }
  if (!list.empty()) list.back().continues = false;
  return list;
}
bool same(const Descriptor& a, const Descriptor& b) {
  return a.address == b.address && a.length_bytes == b.length_bytes && a.rkey == b.rkey && a.continues == b.continues &&
         a.lent == b.lent && a.rail_keys == b.rail_keys;
}
size_t count_buffers(const std::vector<Descriptor>& list) {
  return static_cast<size_t>(std::ranges::count(list, false, &Descriptor::continues));
}

std::string valid_request(Rng& rng) {
  RequestFixed fixed;
  fixed.call_id = rng.next();
  fixed.timeout_ns = static_cast<int64_t>(rng.next());
  fixed.flags = static_cast<uint8_t>(rng.between(0, kRequestFlags));
  fixed.descriptor_count = static_cast<uint16_t>(rng.between(0, 5));
  const std::string method = random_text(rng, 40);
  fixed.method_bytes = static_cast<uint16_t>(method.size());
  auto out = random_descriptors(rng, fixed.flags & kOutFirst);
  for (Descriptor& descriptor : out) descriptor.rail_keys = {};
  const std::string metadata = random_text(rng, 30);
  fixed.metadata_bytes = static_cast<uint16_t>(metadata.size());
  const auto descriptors = random_descriptors(rng, fixed.descriptor_count);
  return bytes_of(fixed) + encode_descriptors(out) + encode_descriptors(descriptors) + method + metadata +
         random_text(rng, 60);
}
std::string valid_reply(Rng& rng) {
  ReplyFixed fixed;
  fixed.call_id = rng.next();
  fixed.status = static_cast<uint8_t>(rng.between(0, kStatusCodeMax));
  fixed.descriptor_count = static_cast<uint16_t>(rng.between(0, 5));
  const auto descriptors = random_descriptors(rng, fixed.descriptor_count);
  const auto buffers = static_cast<int64_t>(count_buffers(descriptors));
  if (buffers > 0) fixed.out_index = static_cast<uint16_t>(rng.between(0, buffers - 1));
  fixed.flags = static_cast<uint8_t>(rng.between(0, kReplyFlags));
  const std::string message = random_text(rng, 40);
  fixed.message_bytes = static_cast<uint32_t>(message.size());
  const std::string metadata = random_text(rng, 30);
  fixed.metadata_bytes = static_cast<uint16_t>(metadata.size());
  return bytes_of(fixed) + encode_descriptors(descriptors) + message + metadata + random_text(rng, 60);
}

TEST(Messages, RandomBytesParseOrSayWhy) {
  Rng rng(1);
  for (int i = 0; i < 50000; ++i) try_all(random_text(rng, 120));
}

TEST(Messages, MutatedMessagesParseOrSayWhy) {
  Rng rng(2);
  for (int i = 0; i < 50000; ++i) {
    std::string text = rng.chance(0.5) ? valid_request(rng) : valid_reply(rng);
    for (int64_t flips = rng.between(0, 4); flips > 0 && !text.empty(); --flips)
      text[static_cast<size_t>(rng.between(0, static_cast<int64_t>(text.size()) - 1))] = static_cast<char>(rng.next());
    if (rng.chance(0.3)) text.resize(static_cast<size_t>(rng.between(0, static_cast<int64_t>(text.size()))));
    try_all(text);
  }
}

TEST(Messages, EveryCutOfARequestOrReplyIsRefusedOrShortensItsPayload) {
  Rng rng(3);
  const std::string request = valid_request(rng);
  const size_t request_head = request.size() - parsed_request(as_bytes(request))->payload.size();
  for (size_t length = 0; length < request.size(); ++length)
    EXPECT_EQ(parsed_request(as_bytes(request.substr(0, length))).ok(), length >= request_head) << length;
  const std::string reply = valid_reply(rng);
  const size_t reply_head = reply.size() - parsed_reply(as_bytes(reply))->payload.size();
  for (size_t length = 0; length < reply.size(); ++length)
    EXPECT_EQ(parsed_reply(as_bytes(reply.substr(0, length))).ok(), length >= reply_head) << length;
}

TEST(Messages, RequestsComeBackWhole) {
  RequestFixed fixed;
  fixed.call_id = 77;
  fixed.timeout_ns = 5;
  fixed.method_bytes = 6;
  fixed.descriptor_count = 2;
  fixed.flags = kOutFirst;
  fixed.metadata_bytes = 8;
  const std::vector<Descriptor> list{{1, 2, 3}, {4, 5, 6}, {7, 0, 9}};
  const std::string text = bytes_of(fixed) + encode_descriptors(list) + "methodmetadatapayload";
  const auto request = parsed_request(as_bytes(text));
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->fixed.call_id, 77u);
  EXPECT_EQ(request->method, "method");
  EXPECT_EQ(as_text(request->metadata), "metadata");
  EXPECT_EQ(as_text(request->payload), "payload");
  ASSERT_TRUE(request->out);
  EXPECT_TRUE(same({request->out->address, request->out->length_bytes, request->out->rkey}, list[0]));
  ASSERT_EQ(request->descriptors.size(), 2u);
  EXPECT_TRUE(same(request->descriptors[0], list[1]) && same(request->descriptors[1], list[2]));
}

TEST(Messages, PiecesComeBackInTheirBuffers) {
  Rng rng(4);
  for (int i = 0; i < 1000; ++i) {
    RequestFixed fixed;
    fixed.descriptor_count = static_cast<uint16_t>(rng.between(1, 40));
    const auto list = random_descriptors(rng, fixed.descriptor_count);
    const std::string text = bytes_of(fixed) + encode_descriptors(list);
    const auto request = parsed_request(as_bytes(text));
    ASSERT_TRUE(request.ok());
    ASSERT_TRUE(std::ranges::equal(request->descriptors, list, same));
    size_t index = 0, at = 0, buffers = 0;
    for (std::span<const Descriptor> rest = list; !rest.empty(); ++index) {
      const auto pieces = first_buffer(rest);
      EXPECT_TRUE(std::ranges::equal(buffer_at(list, index), pieces, same));
      EXPECT_EQ(std::ranges::count(pieces, false, &Descriptor::continues), 1) << "only its last piece ends a buffer";
      rest = rest.subspan(pieces.size());
      at += pieces.size();
      ++buffers;
    }
    EXPECT_EQ(at, list.size());
    EXPECT_EQ(buffers, count_buffers(list));
  }
}

TEST(Messages, PiecesThatDoNotEndAreRefused) {
  for (const uint8_t has_out : {0, 1}) {
    RequestFixed fixed;
    fixed.flags = has_out;
    fixed.descriptor_count = 2;
    std::vector<Descriptor> list(has_out + 2, Descriptor{1, 2, 3});
    list[has_out != 0 ? 0 : 1].continues = true;
    EXPECT_TRUE(parsed_request(as_bytes(bytes_of(fixed) + encode_descriptors(list))).status().is_protocol_error());
  }
  ReplyFixed fixed;
  fixed.descriptor_count = 1;
  EXPECT_TRUE(
      parsed_reply(as_bytes(bytes_of(fixed) + encode_descriptors({{{1, 2, 3, true}}}))).status().is_protocol_error());
}

TEST(Messages, AnOutIndexCountsBuffersAndNotPieces) {
  ReplyFixed fixed;
  fixed.descriptor_count = 3;
  const std::string pieces = encode_descriptors({{{1, 2, 3, true}, {4, 5, 6, true}, {7, 8, 9}}});
  fixed.out_index = 0;
  EXPECT_TRUE(parsed_reply(as_bytes(bytes_of(fixed) + pieces)).ok());
  fixed.out_index = 1;
  EXPECT_TRUE(parsed_reply(as_bytes(bytes_of(fixed) + pieces)).status().is_protocol_error());
}

TEST(Messages, HelloComesBackWhole) {
  const HelloFields fields{{"wire", "1"}, {"host", std::string(300, 'h')}, {"", ""}};
  EXPECT_EQ(parse_hello(as_bytes(encode_hello(fields))).value(), fields);
  EXPECT_TRUE(parse_hello({}).value().empty());
}

TEST(Messages, CallIdsComeInWholeNumbers) {
  const std::string text = bytes_of(uint64_t{5}) + bytes_of(uint64_t{6});
  EXPECT_EQ(parse_call_ids(as_bytes(text)).value(), (std::vector<uint64_t>{5, 6}));
  EXPECT_TRUE(parse_call_ids({}).status().is_protocol_error());
  EXPECT_TRUE(parse_call_ids(as_bytes(text.substr(1))).status().is_protocol_error());
}

TEST(Messages, AProtectedConnectionsDescriptorsHaveNoRails) {
  RequestFixed fixed;
  fixed.descriptor_count = 1;
  Descriptor descriptor{0, 10, 1};
  descriptor.seal = std::make_shared<endpoint::Seal>(endpoint::Seal{.tags = {{}}});
  ParsedRequest good;
  EXPECT_TRUE(parse_request(as_bytes(bytes_of(fixed) + encode_descriptors({&descriptor, 1})), good, true).ok());
  descriptor.rail_keys = {1, 2, 3};
  const std::string text = bytes_of(fixed) + encode_descriptors({&descriptor, 1});
  ParsedRequest bad;
  EXPECT_TRUE(parse_request(as_bytes(text), bad, true).is_protocol_error());
}

TEST(Messages, LengthsPastTheLimitAreRefused) {
  RequestFixed fixed;
  fixed.descriptor_count = 2;
  for (const uint64_t length : {kMessageBytesMax, kMessageBytesMax + 1, ~uint64_t{0}}) {
    const std::vector<Descriptor> list{{0, length, 1}, {0, length, 1}};
    EXPECT_TRUE(parsed_request(as_bytes(bytes_of(fixed) + encode_descriptors(list))).status().is_protocol_error());
  }
}

}  // namespace
}  // namespace rrpc::rpc
