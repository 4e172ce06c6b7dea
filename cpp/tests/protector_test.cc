// The protection of one connection without a connection: what was sealed opens, and nothing else does.
// RRPC_TAMPERINGS=n: how many are tried in each mode.
#include "endpoint/protector.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "base/text.h"
#include "session_world.h"

namespace rrpc::endpoint {
namespace {

using provider::Protection;
using provider::sim::Rng;

constexpr size_t kMessageBytesMax = 1024;

size_t tamperings() {
  const char* const count = std::getenv("RRPC_TAMPERINGS");
  return count != nullptr ? std::strtoull(count, nullptr, 10) : 100'000;
}

provider::ExportedKey secret(uint8_t fill = 7) {
  provider::ExportedKey made;
  made.fill(std::byte{fill});
  return made;
}

DirectionCiphers direction(const std::string& label, const provider::ExportedKey& key = secret()) {
  const auto make = [&](const char* what) {
    return rpc::ciphers()->make(key, as_bytes("hellos"), label + what).value();
  };
  return {make(" messages"), {make(" ranges"), make(" ranges")}};
}

// Both ends of a connection.
struct Ends {
  explicit Ends(Protection mode, const KeyLimits& limits = {})
      : client(mode, direction("client"), direction("server"), kMessageBytesMax, limits),
        server(mode, direction("server"), direction("client"), kMessageBytesMax, limits) {}
  Protector client;
  Protector server;
};

std::string sealed(Protector& sender, const std::string& body) {
  MessageHeader header;
  header.type = 2;
  header.body_bytes = static_cast<uint32_t>(body.size());
  const Bytes part = as_bytes(body);
  return std::string(as_text(sender.seal_message(header, {&part, 1})));
}

// The body; none: refused.
std::optional<std::string> opened(Protector& receiver, const std::string& message, Status* why = nullptr) {
  Bytes bytes = as_bytes(message);
  const Status status = receiver.open_message(bytes);
  if (why != nullptr) *why = status;
  if (!status.ok()) return std::nullopt;
  MessageHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  EXPECT_EQ(header.body_bytes, bytes.size() - sizeof(header));
  return std::string(as_text(bytes.subspan(sizeof(header))));
}

std::string random_text(Rng& rng, size_t most) {
  std::string text(static_cast<size_t>(rng.between(0, static_cast<int64_t>(most))), '\0');
  for (char& letter : text) letter = static_cast<char>(rng.next());
  return text;
}

class EachMode : public ::testing::TestWithParam<Protection> {
 protected:
  void SetUp() override {
    if (rpc::ciphers() == nullptr) GTEST_SKIP() << "this build has no ciphers";
  }
};
INSTANTIATE_TEST_SUITE_P(Protector, EachMode, ::testing::Values(Protection::kSign, Protection::kEncrypt),
                         [](const auto& tested) { return std::string(protection_name(tested.param)); });

TEST_P(EachMode, MessagesOpenInTheirOrder) {
  Rng rng(1);
  for (const uint64_t per_key : {uint64_t{1}, uint64_t{3}, KeyLimits().messages}) {
    KeyLimits limits;
    limits.messages = per_key;
    Ends ends(GetParam(), limits);
    for (int i = 0; i < 200; ++i) {
      const std::string body = i == 0 ? "" : "not to be seen " + random_text(rng, 900);
      const std::string message = sealed(ends.client, body);
      EXPECT_EQ(message.size(), sizeof(MessageHeader) + body.size() + provider::kTagBytes);
      EXPECT_EQ(message.find(body) != std::string::npos, GetParam() == Protection::kSign || body.empty());
      EXPECT_EQ(opened(ends.server, message), body);
      EXPECT_EQ(opened(ends.client, sealed(ends.server, "back")), "back");
    }
  }
}

// Both ends must roll at the same number: an end with other limits goes on with the wrong key.
TEST_P(EachMode, AKeyThatRollsElsewhereIsAnotherKey) {
  KeyLimits limits;
  limits.messages = 5;
  Ends ends(GetParam());
  Protector other(GetParam(), direction("client"), direction("server"), kMessageBytesMax, limits);
  for (int i = 1; i < 5; ++i) EXPECT_TRUE(opened(ends.server, sealed(other, "body")));
  EXPECT_FALSE(opened(ends.server, sealed(other, "body")));
}

TEST_P(EachMode, KeysDependOnSecretTranscriptLabelAndMode) {
  const auto from_client = [](DirectionCiphers keys) {
    Ends ends(GetParam());
    Protector liar(GetParam(), std::move(keys), direction("server"), kMessageBytesMax, {});
    return opened(ends.server, sealed(liar, "body"));
  };
  EXPECT_TRUE(from_client(direction("client")));
  EXPECT_FALSE(from_client(direction("client", secret(8))));
  EXPECT_FALSE(from_client(direction("server"))) << "a reflected message";
  DirectionCiphers keys = direction("client");
  keys.messages = rpc::ciphers()->make(secret(), as_bytes("HELLOS"), "client messages").value();
  EXPECT_FALSE(from_client(std::move(keys))) << "another transcript";
}

// Made by another implementation, from docs/protocol.md alone: HKDF and AES-GCM of Python's hmac and cryptography.
TEST_P(EachMode, TheBytesAreThoseOfTheProtocol) {
  const bool encrypts = GetParam() == Protection::kEncrypt;
  provider::ExportedKey key;
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::byte>(i);
  const std::string label = "rrpc " + std::string(protection_name(GetParam())) + " client ";
  const auto make = [&](const char* what) {
    return rpc::ciphers()->make(key, as_bytes("two hellos"), label + what).value();
  };
  Protector client(GetParam(), {make("messages"), {make("ranges"), make("ranges")}}, direction("server"),
                   kMessageBytesMax, {});
  MessageHeader header;
  header.type = 2;
  header.body_bytes = 4;
  header.epoch = 17;
  header.data_granted = 5;
  header.control_granted = 6;
  const Bytes part = as_bytes("body");
  const Bytes message = client.seal_message(header, {&part, 1});
  EXPECT_EQ(hexadecimal(message.subspan(sizeof(header))),
            encrypts ? "13e990db4765c9da59637d2b0ccb12c65a7243e9" : "626f6479af4c81e2a2724f4b0dc013aba44395ef");
  std::array<std::byte, 5> out{};
  const SealRef seal = client.seal_range(4096, as_bytes("range"), out.data(), kSealPiecesMax);
  EXPECT_EQ(seal->number, 1u);
  EXPECT_EQ((encrypts ? hexadecimal(out) : "") + hexadecimal(seal->tags[0]),
            encrypts ? "2f9ae4fde21a5f22c2abc2b7bb8f91df85be564a9f" : "aaee3806699dee517d3f2fed6e077aea");
}

// What nobody but the peer can have sent, in the place of the next message.
// early: it is the one after that.
std::string forged(Rng& rng, Ends& ends, const std::string& next, const std::vector<std::string>& earlier,
                   bool& early) {
  std::string message = next;
  const auto below = [&rng](size_t end) { return static_cast<size_t>(rng.between(0, static_cast<int64_t>(end) - 1)); };
  switch (rng.between(0, 6)) {
    case 0:
      message[below(message.size())] ^= static_cast<char>(1U << below(8));
      break;
    case 1:
      message.resize(below(message.size()));
      break;
    case 2:
      message.append(1 + below(20), static_cast<char>(rng.next()));
      break;
    case 3:
      message = earlier[below(earlier.size())];
      break;
    case 4:
      early = true;
      return sealed(ends.client, "later");
    case 5:
      message = sealed(ends.server, std::string(below(100), 'r'));
      break;
    default:
      for (char& letter : message) letter = static_cast<char>(rng.next());
  }
  return message;
}

TEST_P(EachMode, NoTamperedMessageIsAccepted) {
  Rng rng(2);
  const size_t count = tamperings();
  KeyLimits limits;
  limits.messages = 1000;
  Ends ends(GetParam(), limits);
  std::vector<std::string> earlier{sealed(ends.client, "first")};
  ASSERT_TRUE(opened(ends.server, earlier.back()));
  size_t accepted = 0, unnamed = 0;
  for (size_t i = 0; i < count; ++i) {
    const std::string body = random_text(rng, 100);
    const std::string next = sealed(ends.client, body);
    bool early = false;
    const std::string attack = forged(rng, ends, next, earlier, early);
    Status why;
    if (opened(ends.server, attack, &why)) ++accepted;
    if (!why.is_protocol_error() || why.message().find("authentication tag") == std::string::npos) ++unnamed;
    ASSERT_EQ(opened(ends.server, next), body) << "the attack fails, and not everything";
    if (early) {
      ASSERT_TRUE(opened(ends.server, attack)) << "in its turn it is right";
    }
    if (earlier.size() < 50) earlier.push_back(next);
  }
  EXPECT_EQ(accepted, 0u);
  EXPECT_EQ(unnamed, 0u) << "an error that doesn't say what was wrong";
  std::printf("%zu tampered messages (%s): %zu accepted\n", count, std::string(protection_name(GetParam())).c_str(),
              accepted);
}

// A range as its owner exposes it and as a reader has fetched it.
struct Range {
  uint64_t address = 0;
  std::vector<std::byte> exposed;
  SealRef seal;
};

Range exposed(Protector& owner, const std::string& bytes, uint64_t address, uint32_t pieces_max = kSealPiecesMax) {
  Range range{address, std::vector<std::byte>(as_bytes(bytes).begin(), as_bytes(bytes).end()), nullptr};
  range.seal = owner.seal_range(address, as_bytes(bytes), range.exposed.data(), pieces_max);
  return range;
}
bool opens(Protector& reader, const Range& range, std::vector<std::byte>& bytes) {
  bytes = range.exposed;
  return reader.open_range(range.address, bytes, *range.seal, 0, range.seal->tags.size()) == provider::Opened::kGenuine;
}

// Opens nothing: for each piece it says the next of these.
struct FailingCipher : provider::Cipher {
  explicit FailingCipher(std::vector<provider::Opened> outcomes) : answers(std::move(outcomes)) {}
  bool seal(const provider::CipherNonce&, Bytes, Bytes, Bytes, std::byte*, provider::CipherTag&) override {
    return false;
  }
  provider::Opened open(const provider::CipherNonce&, Bytes, Bytes, Bytes, std::byte*,
                        const provider::CipherTag&) override {
    return answers[asked++ % answers.size()];
  }
  std::vector<provider::Opened> answers;
  size_t asked = 0;
};

DirectionCiphers failing(const std::vector<provider::Opened>& answers) {
  const auto make = [&] { return std::make_unique<FailingCipher>(answers); };
  return {make(), {make(), make()}};
}

TEST_P(EachMode, LackOfMemoryIsNotTakenForTampering) {
  using provider::Opened;
  Ends ends(GetParam());
  Protector starved(GetParam(), failing({}), failing({Opened::kGenuine, Opened::kOutOfMemory}), kMessageBytesMax, {});
  const std::string bytes(2 * kSealPieceBytes, 'x');
  const Range range = exposed(ends.client, bytes, 4096);
  std::vector<std::byte> memory = range.exposed;
  EXPECT_EQ(starved.open_range(range.address, memory, *range.seal, 0, 2), Opened::kOutOfMemory);
  Status why;
  EXPECT_TRUE(opened(starved, sealed(ends.client, "one"), &why));
  EXPECT_FALSE(opened(starved, sealed(ends.client, "two"), &why));
  EXPECT_EQ(why.code(), StatusCode::kResourceExhausted);
  Protector deceived(GetParam(), failing({}), failing({Opened::kForged, Opened::kOutOfMemory}), kMessageBytesMax, {});
  EXPECT_EQ(deceived.open_range(range.address, memory, *range.seal, 0, 2), Opened::kForged) << "the graver of the two";
}

TEST_P(EachMode, RangesOfAllLengthsOpen) {
  Rng rng(3);
  KeyLimits limits;
  limits.ranges = 3;
  limits.range_bytes = 400'000;
  Ends ends(GetParam(), limits);
  std::vector<Range> late;
  std::vector<std::string> expected;
  for (const size_t length : {size_t{1}, size_t{15}, size_t{4096}, kSealPieceBytes - 1, kSealPieceBytes,
                              kSealPieceBytes + 1, 10 * kSealPieceBytes + 7, size_t{5} << 20}) {
    const std::string bytes = rpc::pattern(length, length, 1);
    const Range range = exposed(ends.client, bytes, 4096 * length, 16);
    EXPECT_EQ(range.seal->tags.size(), seal_piece_count(length, 16));
    EXPECT_EQ(as_text(range.exposed) == bytes, GetParam() == Protection::kSign);
    std::vector<std::byte> read;
    EXPECT_TRUE(opens(ends.server, range, read));
    EXPECT_EQ(as_text(read), bytes);
    late.push_back(range);
    expected.push_back(bytes);
  }
  EXPECT_GT(late.back().seal->number >> 32, late.front().seal->number >> 32) << "keys rolled";
  for (size_t i = 0; i < late.size(); ++i) {  // in any order, and more than once
    std::vector<std::byte> read;
    EXPECT_TRUE(opens(ends.server, late[late.size() - 1 - i], read));
    EXPECT_EQ(as_text(read), expected[late.size() - 1 - i]);
  }
}

TEST(Seals, PiecesAreWithinTheLimits) {
  for (uint64_t length = 1; length <= kSealedBytesMax; length = length * 3 + 1) {
    for (const uint32_t pieces_max : {kSealPiecesMax, kBodySealPiecesMax}) {
      EXPECT_LE(seal_piece_count(length, pieces_max), pieces_max);
      EXPECT_LT(seal_piece_bytes(length, pieces_max), (uint64_t{1} << 36) - 32);
      EXPECT_GE(seal_piece_count(length, pieces_max) * seal_piece_bytes(length, pieces_max), length);
    }
  }
}

bool tamper(Rng& rng, Range& range, const Range& other) {
  const auto below = [&rng](size_t end) { return static_cast<size_t>(rng.between(0, static_cast<int64_t>(end) - 1)); };
  auto seal = std::make_shared<Seal>(*range.seal);
  switch (rng.between(0, 7)) {
    case 0:
    case 1:
      range.exposed[below(range.exposed.size())] ^= static_cast<std::byte>(1U << below(8));
      return true;
    case 2:
      seal->tags[below(seal->tags.size())][below(provider::kTagBytes)] ^= static_cast<std::byte>(1U << below(8));
      break;
    case 3:
      seal->number ^= uint64_t{1} << below(40);
      break;
    case 4:
      range.address ^= uint64_t{1} << below(48);
      return true;
    case 5:
      if (range.exposed.size() < 2 || seal_piece_count(range.exposed.size() - 1, seal->pieces_max) != seal->tags.size())
        return false;
      range.exposed.pop_back();
      return true;
    case 6:  // what another range had, with its seal
      range.exposed = other.exposed;
      seal = std::make_shared<Seal>(*other.seal);
      break;
    default: {
      if (seal->tags.size() < 2) return false;
      std::swap(seal->tags[0], seal->tags[1]);
      std::swap_ranges(range.exposed.begin(), range.exposed.begin() + kSealPieceBytes,
                       range.exposed.begin() + kSealPieceBytes);
    }
  }
  range.seal = seal;
  return true;
}

TEST_P(EachMode, NoTamperedRangeIsAccepted) {
  Rng rng(4);
  const size_t count = tamperings();
  KeyLimits limits;
  limits.ranges = 100;
  Ends ends(GetParam(), limits);
  const std::string bytes = rpc::pattern(2 * kSealPieceBytes, 1, 1);
  size_t tried = 0, accepted = 0;
  std::vector<std::byte> read;
  for (uint64_t address = 1; tried < count; ++address) {
    const bool is_long = address % 1000 == 0;
    const size_t length = is_long ? bytes.size() : 1 + static_cast<size_t>(rng.between(0, 200));
    const Range other = exposed(ends.client, bytes.substr(0, length), address * 3);
    const Range range = exposed(ends.client, bytes.substr(1, length - 1) + "x", address);
    for (int i = 0; i < 8; ++i) {
      Range changed = range;
      if (!tamper(rng, changed, other)) continue;
      ++tried;
      if (opens(ends.server, changed, read)) ++accepted;
    }
    ASSERT_TRUE(opens(ends.server, range, read)) << "the attack fails, and not everything";
  }
  EXPECT_EQ(accepted, 0u);
  std::printf("%zu tampered ranges (%s): %zu accepted\n", tried, std::string(protection_name(GetParam())).c_str(),
              accepted);
}

}  // namespace
}  // namespace rrpc::endpoint
