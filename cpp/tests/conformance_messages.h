// SEND and receive.
#pragma once

#include <algorithm>
#include <cstring>

#include "conformance.h"

namespace rrpc::provider::conformance {

TEST_P(ConformanceTest, MessagesArriveInOrderInTheReceivesPosted) {
  constexpr uint64_t kCount = 50;
  connect({}, {}, kCount);
  for (uint64_t i = 0; i < kCount; ++i) {
    Buffer& message = buffer(client_, 10 + i, static_cast<uint32_t>(i));
    ASSERT_TRUE(post_send(client_, i, message.sge()).ok());
  }
  ASSERT_TRUE(wait_for([&] { return server_.completions.size() == kCount && client_.completions.size() == kCount; }));
  for (uint64_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(client_.completions[i].wr_id, i);
    EXPECT_EQ(client_.completions[i].status, WcStatus::kSuccess);
    EXPECT_EQ(client_.completions[i].qp_number, client_.qp->number());
    EXPECT_EQ(server_.completions[i].wr_id, 1000 + i);
    EXPECT_EQ(server_.completions[i].opcode, Opcode::kReceive);
    EXPECT_EQ(server_.completions[i].length_bytes, 10 + i);
    EXPECT_EQ(buffers_[i].text(10 + i), buffers_[kCount + i].text(10 + i));
  }
}

TEST_P(ConformanceTest, TheServerMaySendToo) {
  client_.qp = open_client();
  Buffer& target = buffer(client_, 64);
  post_receive(client_, 5, target.sge());
  ASSERT_TRUE(client_.qp->start({}).ok());
  server_.qp = accept_server();
  ASSERT_TRUE(server_.qp->start({}).ok());
  ASSERT_TRUE(wait_for([&] { return connected(client_) && connected(server_); }));
  Buffer& message = buffer(server_, 64, 9);
  ASSERT_TRUE(post_send(server_, 1, message.sge()).ok());
  ASSERT_TRUE(wait_done(client_, 5));
  EXPECT_EQ(target.bytes, message.bytes);
}

TEST_P(ConformanceTest, AZeroLengthMessageArrives) {
  connect({}, {}, 2);
  ASSERT_TRUE(post(client_, {.wr_id = 1, .sges = {}}).ok());
  ASSERT_TRUE(post_send(client_, 2, buffer(client_, 16).sge(0, 0)).ok());
  ASSERT_TRUE(wait_for([&] { return server_.completions.size() == 2 && client_.completions.size() == 2; }));
  EXPECT_EQ(server_.completions[0].status, WcStatus::kSuccess);
  EXPECT_EQ(server_.completions[0].length_bytes, 0u);
}

TEST_P(ConformanceTest, AMessageMayFillItsReceive) {
  connect({}, {}, 1);
  Buffer& message = buffer(client_, 4096, 3);
  ASSERT_TRUE(post_send(client_, 1, message.sge()).ok());
  ASSERT_TRUE(wait_done(server_, 1000));
  EXPECT_EQ(server_.completions[0].length_bytes, 4096u);
  EXPECT_EQ(buffers_[0].bytes, message.bytes);
}

TEST_P(ConformanceTest, ASendIsGatheredFromSeveralElements) {
  connect({}, {}, 1);
  ASSERT_GE(client_.qp->limits().sge_count_max, 2u);
  Buffer& first = buffer(client_, 10, 1);
  Buffer& second = buffer(client_, 20, 2);
  const Sge sges[] = {first.sge(2, 5), second.sge(0, 20)};
  ASSERT_TRUE(post(client_, {.wr_id = 1, .sges = sges}).ok());
  ASSERT_TRUE(wait_done(server_, 1000));
  EXPECT_EQ(server_.completions[0].length_bytes, 25u);
  EXPECT_EQ(buffers_[0].text(25), first.text(7).substr(2) + second.text(20));
}

TEST_P(ConformanceTest, TooManyElementsAreRefused) {
  connect();
  const std::vector<Sge> sges(client_.qp->limits().sge_count_max + 1, buffer(client_, 8).sge());
  EXPECT_EQ(post(client_, {.wr_id = 1, .sges = sges}).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(connected(client_));
}

TEST_P(ConformanceTest, InlineBytesAreTakenBeforeThePostReturns) {
  constexpr uint64_t kCount = 40;
  connect({}, {}, kCount);
  const uint32_t length_bytes = std::min<uint32_t>(client_.qp->limits().inline_bytes_max, 4096);
  if (length_bytes == 0) GTEST_SKIP() << "no inline sends";
  std::vector<std::byte> scratch(length_bytes);
  for (uint64_t i = 0; i < kCount; ++i) {
    std::fill(scratch.begin(), scratch.end(), static_cast<std::byte>(i + 1));
    const Sge sge{scratch.data(), length_bytes, nullptr};
    ASSERT_TRUE(post(client_, {.wr_id = i, .sges = {&sge, 1}, .inline_data = true}).ok());
    std::fill(scratch.begin(), scratch.end(), std::byte{0xee});
  }
  ASSERT_TRUE(wait_for([&] { return server_.completions.size() == kCount; }));
  for (uint64_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(buffers_[i].bytes[0], static_cast<std::byte>(i + 1));
    EXPECT_EQ(buffers_[i].bytes[length_bytes - 1], static_cast<std::byte>(i + 1));
  }
}

TEST_P(ConformanceTest, AReservedMessageGoesInTurnAndCompletesNowhere) {
  constexpr uint64_t kCount = 30;
  connect({}, {}, kCount);
  Buffer& message = buffer(client_, 64, 3);
  for (uint64_t i = 0; i < kCount; ++i) {
    std::byte* const reserved = i % 3 == 1 ? nullptr : client_.qp->reserve_message(20 + static_cast<uint32_t>(i));
    if (reserved != nullptr) {
      std::memcpy(reserved, message.bytes.data(), 20 + i);
      client_.qp->commit_message(i % 2 == 0, QueuePair::kNoCompletion);
    } else {
      ASSERT_TRUE(post_send(client_, i, message.sge(0, 20 + static_cast<uint32_t>(i)), i % 3 == 1).ok());
    }
  }
  ASSERT_TRUE(
      wait_for([&] { return server_.completions.size() == kCount && client_.completions.size() >= kCount / 3; }));
  EXPECT_EQ(client_.completions.size(), kCount / 3) << "those that were posted, and asked for it";
  for (uint64_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(server_.completions[i].wr_id, 1000 + i);
    EXPECT_EQ(server_.completions[i].length_bytes, 20 + i);
    EXPECT_EQ(buffers_[i].text(20 + i), message.text(20 + i));
  }
}

TEST_P(ConformanceTest, AReservedMessageCompletesUnderTheIdThatItIsGiven) {
  constexpr uint64_t kCount = 300;  // more than the send queue holds
  connect({}, {}, 1);
  if (!client_.qp->limits().messages_complete) GTEST_SKIP() << "its messages never complete";
  std::vector<uint64_t> asked;
  for (uint64_t i = 0; i < kCount; ++i) {
    std::byte* const reserved = client_.qp->reserve_message(8);
    ASSERT_NE(reserved, nullptr) << i;
    std::memcpy(reserved, &i, sizeof(i));
    const bool wanted = i % 7 == 3;
    if (wanted) asked.push_back(5000 + i);
    client_.qp->commit_message(false, wanted ? 5000 + i : QueuePair::kNoCompletion);
    ASSERT_TRUE(wait_for([&] { return server_.completions.size() == i + 1; }));
    uint64_t arrived = 0;
    std::memcpy(&arrived, server_.receives.at(1000).address, sizeof(arrived));
    EXPECT_EQ(arrived, i);
    if (!server_.qp->post_again(1000)) post_receive(server_, 1000, server_.receives.at(1000));
    step();  // the device has it by then
  }
  ASSERT_TRUE(wait_for([&] { return client_.completions.size() == asked.size(); }));
  for (size_t i = 0; i < asked.size(); ++i) {
    EXPECT_EQ(client_.completions[i].wr_id, asked[i]);
    EXPECT_EQ(client_.completions[i].opcode, Opcode::kSend);
    EXPECT_EQ(client_.completions[i].status, WcStatus::kSuccess);
  }
}

// A full receive queue of which each receive goes back to where it was.
TEST_P(ConformanceTest, AReceiveThatIsPostedAgainTakesAnotherMessage) {
  constexpr uint32_t kDepth = 8;
  const QueuePairConfig config{.receive_depth = kDepth};
  connect(config, config, kDepth);
  uint64_t again = 0;
  for (uint64_t round = 0; round < 20; ++round) {
    const uint64_t count = 1 + round % kDepth;
    const size_t before = server_.completions.size();
    for (uint64_t i = 0; i < count; ++i)
      ASSERT_TRUE(post_send(client_, i, buffer(client_, 64, static_cast<uint32_t>(before + i)).sge()).ok());
    ASSERT_TRUE(wait_for([&] { return server_.completions.size() == before + count; }));
    for (size_t i = before; i < before + count; ++i) {
      const Completion& completion = server_.completions[i];
      EXPECT_EQ(completion.status, WcStatus::kSuccess);
      EXPECT_EQ(completion.wr_id, 1000 + i % kDepth);
      EXPECT_EQ(buffers_[i % kDepth].text(64), buffers_[kDepth + i].text(64));
      const Sge place = server_.receives.at(completion.wr_id);
      const bool posted = server_.qp->post_again(completion.wr_id);
      again += posted ? 1 : 0;
      if (!posted) post_receive(server_, completion.wr_id, place);
    }
    step();  // the device has them by then
  }
  if (client_.qp->limits().messages_complete) {
    EXPECT_EQ(again, server_.completions.size());
  }
  // Those that wait for the device end with the others.
  EXPECT_TRUE(connected(server_));
  server_.qp->disconnect("enough");
  const size_t before = server_.completions.size();
  EXPECT_TRUE(wait_for([&] { return server_.completions.size() == before + kDepth; }));
  for (size_t i = before; i < before + kDepth; ++i) EXPECT_EQ(server_.completions[i].status, WcStatus::kFlushed);
}

TEST_P(ConformanceTest, RequestsThatWaitForOthersAreCarriedOutInTheirOrder) {
  constexpr uint64_t kCount = 60;
  connect({}, {}, kCount);
  Buffer& source = buffer(server_, 64, 5);
  Buffer& sink = buffer(client_, 64);
  const uint32_t key = expose(server_, source, 0, 64, kRemoteRead);
  const uint32_t inline_bytes = std::min<uint32_t>(client_.qp->limits().inline_bytes_max, 64);
  Buffer& message = buffer(client_, 64, 3);
  std::vector<std::byte> scratch(inline_bytes);
  for (uint64_t i = 0; i < kCount; ++i) {
    const bool more = i % 20 != 19;
    const bool is_inline = i % 2 == 0 && inline_bytes > 0;
    std::fill(scratch.begin(), scratch.end(), static_cast<std::byte>(i + 1));
    const Sge sge = is_inline ? Sge{scratch.data(), inline_bytes, nullptr} : message.sge();
    ASSERT_TRUE(post(client_, {.wr_id = i, .sges = {&sge, 1}, .inline_data = is_inline, .more = more}).ok());
    std::fill(scratch.begin(), scratch.end(), std::byte{0xee});
    EXPECT_EQ(client_.qp->holds(), provider_->requests_wait() && i % 20 != 15 && i % 20 != 19) << i;
  }
  const Sge into = sink.sge();
  ASSERT_TRUE(post(client_, {.wr_id = kCount,
                             .opcode = Opcode::kRead,
                             .sges = {&into, 1},
                             .remote_address = reinterpret_cast<uint64_t>(source.bytes.data()),
                             .rkey = key,
                             .more = true})
                  .ok());
  EXPECT_EQ(client_.qp->holds(), provider_->requests_wait());
  client_.qp->ring();
  EXPECT_FALSE(client_.qp->holds());
  ASSERT_TRUE(
      wait_for([&] { return server_.completions.size() == kCount && client_.completions.size() == kCount + 1; }));
  for (uint64_t i = 0; i <= kCount; ++i) EXPECT_EQ(client_.completions[i].wr_id, i);
  EXPECT_EQ(sink.bytes, source.bytes);
  for (uint64_t i = 0; i < kCount; ++i) {
    const bool was_inline = i % 2 == 0 && inline_bytes > 0;
    EXPECT_EQ(server_.completions[i].wr_id, 1000 + i);
    EXPECT_EQ(buffers_[i].bytes[5], was_inline ? static_cast<std::byte>(i + 1) : message.bytes[5]) << i;
  }
}

TEST_P(ConformanceTest, APollThatFindsNothingSendsWhatWaits) {
  connect({}, {}, 2);
  const Sge sge = buffer(client_, 64).sge();
  for (uint64_t i = 0; i < 2; ++i) ASSERT_TRUE(post(client_, {.wr_id = i, .sges = {&sge, 1}, .more = true}).ok());
  EXPECT_TRUE(wait_for([&] { return server_.completions.size() == 2; }));
}

TEST_P(ConformanceTest, ADisconnectSendsWhatWaits) {
  connect({}, {}, 5);
  const Sge sge = buffer(client_, 64).sge();
  for (uint64_t i = 0; i < 5; ++i) ASSERT_TRUE(post(client_, {.wr_id = i, .sges = {&sge, 1}, .more = true}).ok());
  client_.qp->disconnect("enough");
  ASSERT_TRUE(wait_for([&] { return server_.completions.size() == 5; }));
  for (const Completion& completion : server_.completions) EXPECT_EQ(completion.status, WcStatus::kSuccess);
}

// Exposing and revoking are requests of their own on some adapters.
TEST_P(ConformanceTest, WhatWaitsGoesBeforeAnExposure) {
  connect({}, {}, 1);
  const Sge sge = buffer(client_, 64).sge();
  Buffer& exposed = buffer(client_, 64, 7);
  ASSERT_TRUE(post(client_, {.wr_id = 1, .sges = {&sge, 1}, .more = true}).ok());
  const uint32_t key = expose(client_, exposed, 0, 64, kRemoteRead);
  ASSERT_TRUE(wait_for([&] { return server_.completions.size() == 1 && client_.completions.size() == 1; }));
  Buffer& sink = buffer(server_, 64);
  ASSERT_TRUE(post_bulk(server_, Opcode::kRead, 9, sink.sge(), exposed.bytes.data(), key).ok());
  ASSERT_TRUE(wait_done(server_, 9));
  EXPECT_EQ(sink.bytes, exposed.bytes);
}

TEST_P(ConformanceTest, NothingIsReservedThatCannotBeSent) {
  connect({}, {}, 1);
  EXPECT_EQ(client_.qp->reserve_message(4097), nullptr) << "longer than the peer's receive";
  std::byte* const reserved = client_.qp->reserve_message(4096);
  if (reserved != nullptr) {
    std::memset(reserved, 7, 4096);
    client_.qp->commit_message(false, QueuePair::kNoCompletion);
    EXPECT_EQ(client_.qp->reserve_message(8), nullptr) << "no receive is posted";
    EXPECT_TRUE(connected(client_)) << "only post_send() ends a connection of that";
    ASSERT_TRUE(wait_done(server_, 1000));
    EXPECT_EQ(server_.completions[0].status, WcStatus::kSuccess);
    post_receive(server_, 1001, buffer(server_, 4096).sge());
  }
  client_.qp->disconnect("enough");
  EXPECT_EQ(client_.qp->reserve_message(8), nullptr) << "disconnected";
}

TEST_P(ConformanceTest, TooLongAnInlineSendIsRefused) {
  connect();
  Buffer& message = buffer(client_, client_.qp->limits().inline_bytes_max + 1);
  const Sge sge = message.sge();
  EXPECT_EQ(post(client_, {.wr_id = 1, .sges = {&sge, 1}, .inline_data = true}).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(connected(client_));
}

TEST_P(ConformanceTest, AnUnsignalledSendCompletesOnlyInFailure) {
  connect({}, {}, 3);
  Buffer& message = buffer(client_, 16);
  ASSERT_TRUE(post_send(client_, 1, message.sge(), false).ok());
  ASSERT_TRUE(post_send(client_, 2, message.sge(), false).ok());
  ASSERT_TRUE(post_send(client_, 3, message.sge(), true).ok());
  ASSERT_TRUE(wait_for([&] { return server_.completions.size() == 3 && client_.find(3) != nullptr; }));
  EXPECT_EQ(client_.completions.size(), 1u);
}

TEST_P(ConformanceTest, AnUnsignalledReadThatIsRefusedCompletes) {
  connect();
  Buffer& target = buffer(client_, 16);
  const Sge sge = target.sge();
  ASSERT_TRUE(post(client_, {.wr_id = 4, .opcode = Opcode::kRead, .sges = {&sge, 1}, .signalled = false}).ok());
  ASSERT_TRUE(wait_done(client_, 4));
  expect_refused(client_, 4);
}

TEST_P(ConformanceTest, ASendThatFindsNoReceiveEndsBothQueuePairs) {
  connect({}, {}, 1);
  Buffer& message = buffer(client_, 16);
  ASSERT_TRUE(post_send(client_, 1, message.sge()).ok());
  ASSERT_TRUE(post_send(client_, 2, message.sge()).ok());
  ASSERT_TRUE(wait_both_dead());
  ASSERT_TRUE(wait_done(client_, 2));
  EXPECT_EQ(client_.status(1), WcStatus::kSuccess);
  EXPECT_EQ(server_.status(1000), WcStatus::kSuccess);
  if (provider_->sends_are_acknowledged()) {
    EXPECT_EQ(client_.status(2), WcStatus::kRnrRetryExceeded);
  }
  EXPECT_EQ(client_.count(2), 1u);
  EXPECT_FALSE(client_.qp->error().is_protocol_error()) << client_.qp->error().to_string();
}

TEST_P(ConformanceTest, AMessageLongerThanItsReceiveEndsBothQueuePairs) {
  connect();
  Buffer& target = buffer(server_, 32, 1);
  const SharedBytes before = target.bytes;
  post_receive(server_, 7, target.sge(0, 15));
  post_receive(server_, 8, target.sge(16, 16));
  ASSERT_TRUE(post_send(client_, 1, buffer(client_, 16, 99).sge()).ok());
  ASSERT_TRUE(wait_both_dead());
  ASSERT_TRUE(wait_for([&] { return server_.completions.size() == 2 && client_.count(1) == 1; }));
  EXPECT_EQ(server_.completions[0].wr_id, 7u);
  EXPECT_EQ(server_.completions[0].status, WcStatus::kLocalLength);
  EXPECT_EQ(server_.completions[1].status, WcStatus::kFlushed);
  if (provider_->sends_are_acknowledged()) {
    EXPECT_NE(client_.status(1), WcStatus::kSuccess);
  }
  EXPECT_EQ(std::vector(target.bytes.begin() + 15, target.bytes.end()), std::vector(before.begin() + 15, before.end()));
}

TEST_P(ConformanceTest, MemoryOutsideItsRegionIsALocalProtectionError) {
  connect({}, {}, 1);
  Buffer& message = buffer(client_, 16);
  Sge beyond = message.sge();
  beyond.length_bytes += 1;
  ASSERT_TRUE(post_send(client_, 1, beyond).ok());
  ASSERT_TRUE(wait_done(client_, 1));
  EXPECT_EQ(client_.status(1), WcStatus::kLocalProtection);
  EXPECT_TRUE(client_.dead());
  ASSERT_TRUE(wait_for([&] { return server_.dead(); }));
}

TEST_P(ConformanceTest, MemoryOfNoRegionIsALocalProtectionError) {
  connect({}, {}, 1);
  std::byte loose[16] = {};
  ASSERT_TRUE(post_send(client_, 1, {loose, sizeof(loose), nullptr}).ok());
  ASSERT_TRUE(wait_done(client_, 1));
  EXPECT_EQ(client_.status(1), WcStatus::kLocalProtection);
}

TEST_P(ConformanceTest, AFullSendQueueIsResourceExhausted) {
  connect({.send_depth = 8}, {}, 32);
  Buffer& message = buffer(client_, 16);
  for (uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(post_send(client_, i, message.sge()).ok());
  const Status full = post_send(client_, 8, message.sge());
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted) << full.to_string();
  ASSERT_TRUE(wait_for([&] { return client_.completions.size() == 8; }));
  EXPECT_TRUE(post_send(client_, 9, message.sge()).ok()) << "polling makes room";
  ASSERT_TRUE(wait_for([&] { return server_.completions.size() == 9; }));
}

TEST_P(ConformanceTest, AListIsPostedWholeOrNotAtAll) {
  connect({.send_depth = 4}, {}, 16);
  Buffer& message = buffer(client_, 16);
  const Sge sge = message.sge();
  std::vector<WorkRequest> list(5, {.wr_id = 1, .sges = {&sge, 1}});
  EXPECT_EQ(client_.qp->post_send(list).code(), StatusCode::kResourceExhausted);
  list.resize(4);
  ASSERT_TRUE(client_.qp->post_send(list).ok());
  ASSERT_TRUE(wait_for([&] { return server_.completions.size() == 4 && client_.completions.size() == 4; }));
}

TEST_P(ConformanceTest, AFullReceiveQueueIsResourceExhausted) {
  connect({.receive_depth = 4}, {});
  Buffer& memory = buffer(client_, 16);
  for (uint64_t i = 0; i < 4; ++i) post_receive(client_, i, memory.sge());
  EXPECT_EQ(client_.qp->post_receive({.wr_id = 4, .sge = memory.sge()}).code(), StatusCode::kResourceExhausted);
}

TEST_P(ConformanceTest, ReceivesAreUsedAgainAndAgain) {
  constexpr uint64_t kDepth = 8;
  constexpr uint64_t kCount = 2000;
  connect({}, {}, kDepth);
  Buffer& message = buffer(client_, 256);
  uint64_t sent = 0;
  uint64_t received = 0;
  ASSERT_TRUE(wait_for([&] {
    for (const Completion& completion : server_.completions) {
      EXPECT_EQ(completion.status, WcStatus::kSuccess);
      const uint64_t slot = completion.wr_id - 1000;
      EXPECT_EQ(slot, received++ % kDepth);
      post_receive(server_, completion.wr_id, buffers_[slot].sge());
    }
    server_.completions.clear();
    client_.completions.clear();
    while (sent < kCount && sent < received + kDepth) {
      if (!post_send(client_, sent, message.sge()).ok()) return true;
      ++sent;
    }
    return received == kCount;
  }));
  EXPECT_EQ(received, kCount);
}

}  // namespace rrpc::provider::conformance
