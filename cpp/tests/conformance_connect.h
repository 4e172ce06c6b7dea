// Connecting, ending, and sleeping.
#pragma once

#include <fcntl.h>
#include <poll.h>

#include "conformance.h"

namespace rrpc::provider::conformance {

TEST_P(ConformanceTest, PrivateDataReachesBothEnds) {
  connect();
  // It may be zero padded.
  EXPECT_TRUE(as_text(client_.qp->peer_private_data()).starts_with("hello from the server"));
  EXPECT_TRUE(as_text(server_.qp->peer_private_data()).starts_with("hello from the client"));
  EXPECT_FALSE(client_.qp->peer_description().empty());
  EXPECT_FALSE(client_.qp->bulk_method().empty());
  EXPECT_NE(client_.qp->number(), server_.qp->number());
}

TEST_P(ConformanceTest, NothingIsPollableBeforeStart) {
  client_.qp = open_client();
  EXPECT_EQ(client_.qp->state(), QueuePairState::kInit);
  EXPECT_TRUE(client_.qp->peer_private_data().empty());
  EXPECT_FALSE(post_send(client_, 1, buffer(client_, 8).sge()).ok());
  step();
  EXPECT_EQ(client_.qp->state(), QueuePairState::kInit);
}

TEST_P(ConformanceTest, TooMuchPrivateDataIsRefused) {
  client_.qp = open_client();
  const std::string long_data(kPrivateDataBytesMax + 1, 'x');
  EXPECT_EQ(client_.qp->start(as_bytes(long_data)).code(), StatusCode::kInvalidArgument);
}

TEST_P(ConformanceTest, FullPrivateDataPasses) {
  client_.qp = open_client();
  const std::string data(kPrivateDataBytesMax, 'x');
  ASSERT_TRUE(client_.qp->start(as_bytes(data)).ok());
  server_.qp = accept_server();
  ASSERT_TRUE(server_.qp->start({}).ok());
  ASSERT_TRUE(wait_for([&] { return connected(client_) && connected(server_); }));
  EXPECT_EQ(as_text(server_.qp->peer_private_data().first(kPrivateDataBytesMax)), data);
}

TEST_P(ConformanceTest, ConnectingWhereNobodyListensFails) {
  auto opened = client_.device->open(*client_.cq, provider_->vacant_address(), {}, deadline_after(now_ns(), kSecond));
  if (!opened.ok()) {
    EXPECT_EQ(opened.status().code(), StatusCode::kUnavailable) << opened.status().to_string();
    return;
  }
  client_.qp = std::move(opened).value();
  (void)client_.qp->start({});
  ASSERT_TRUE(wait_for([&] { return client_.dead(); }));
  EXPECT_EQ(client_.qp->error().code(), StatusCode::kUnavailable) << client_.qp->error().to_string();
  EXPECT_NE(client_.qp->error().message().find(provider_->vacant_address()), std::string::npos);
}

TEST_P(ConformanceTest, ListeningTwiceOnOneAddressIsRefused) {
  auto second = server_.device->listen(listener_->address(), {});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kAlreadyExists) << second.status().to_string();
  EXPECT_NE(second.status().message().find(listener_->address()), std::string::npos);
}

TEST_P(ConformanceTest, AnAddressIsFreeAgainAfterItsListener) {
  connect();
  const std::string address = listener_->address();
  client_.qp->disconnect("done");
  ASSERT_TRUE(wait_both_dead());
  listener_.reset();
  auto again = server_.device->listen(address, {});
  ASSERT_TRUE(again.ok()) << again.status().to_string();
}

TEST_P(ConformanceTest, AcceptNeverBlocks) {
  auto accepted = listener_->accept(*server_.cq, {});
  ASSERT_TRUE(accepted.ok());
  EXPECT_EQ(accepted.value(), nullptr);
}

TEST_P(ConformanceTest, DisconnectIsSeenByThePeer) {
  connect();
  client_.qp->disconnect("all done");
  EXPECT_TRUE(client_.dead());
  ASSERT_TRUE(wait_for([&] { return server_.dead(); }));
  EXPECT_EQ(server_.qp->error().code(), StatusCode::kUnavailable) << server_.qp->error().to_string();
  EXPECT_FALSE(server_.qp->error().is_protocol_error());
}

TEST_P(ConformanceTest, DisconnectInsteadOfStartRejects) {
  client_.qp = open_client();
  ASSERT_TRUE(client_.qp->start(as_bytes("hello from the client")).ok());
  server_.qp = accept_server();
  // Who knows the offer so early knows all of it.
  const Bytes offered = server_.qp->peer_private_data();
  EXPECT_TRUE(offered.empty() || as_text(offered).starts_with("hello from the client"));
  server_.qp->disconnect("not you");
  EXPECT_TRUE(server_.dead());
  ASSERT_TRUE(wait_for([&] { return client_.dead(); }));
  EXPECT_EQ(client_.qp->error().code(), StatusCode::kUnavailable) << client_.qp->error().to_string();
  EXPECT_FALSE(client_.qp->error().is_protocol_error());
}

TEST_P(ConformanceTest, DestructionIsSeenByThePeer) {
  connect();
  client_.qp.reset();
  ASSERT_TRUE(wait_for([&] { return server_.dead(); }));
  EXPECT_EQ(server_.qp->error().code(), StatusCode::kUnavailable) << server_.qp->error().to_string();
}

TEST_P(ConformanceTest, WhatWasPostedBeforeDisconnectIsDelivered) {
  connect({}, {}, 8);
  Buffer& message = buffer(client_, 4096, 7);
  for (uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(post_send(client_, i, message.sge()).ok());
  // Only where sends complete does the contract promise delivery.
  if (provider_->sends_are_acknowledged()) {
    ASSERT_TRUE(wait_done(client_, 7));
  }
  client_.qp->disconnect("done");
  ASSERT_TRUE(wait_for([&] { return server_.dead() && server_.completions.size() == 8; }));
  for (const Completion& completion : server_.completions) EXPECT_EQ(completion.status, WcStatus::kSuccess);
}

TEST_P(ConformanceTest, EverythingPostedIsFlushedExactlyOnce) {
  connect();
  Buffer& memory = buffer(client_, 64);
  Buffer& remote = buffer(server_, 64);
  const uint32_t rkey = expose(server_, remote, 0, 64, kRemoteRead | kRemoteWrite);
  for (uint64_t i = 0; i < 5; ++i) post_receive(client_, 100 + i, memory.sge());
  for (uint64_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(post_bulk(client_, Opcode::kRead, 200 + i, memory.sge(), remote.bytes.data(), rkey).ok());
    ASSERT_TRUE(post_bulk(client_, Opcode::kWrite, 300 + i, memory.sge(), remote.bytes.data(), rkey).ok());
  }
  client_.qp->disconnect("gone");
  ASSERT_TRUE(wait_for([&] { return client_.completions.size() >= 15; }));
  for (int i = 0; i < 100; ++i) step();
  EXPECT_EQ(client_.completions.size(), 15u);
  for (uint64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(client_.count(100 + i), 1u);
    EXPECT_EQ(client_.count(200 + i), 1u);
    EXPECT_EQ(client_.count(300 + i), 1u);
    EXPECT_EQ(client_.status(100 + i), WcStatus::kFlushed);
  }
}

TEST_P(ConformanceTest, ADeadPeersRequestsAreFlushed) {
  connect();
  Buffer& memory = buffer(server_, 64);
  for (uint64_t i = 0; i < 5; ++i) post_receive(server_, i, memory.sge());
  client_.qp.reset();
  ASSERT_TRUE(wait_for([&] { return server_.completions.size() == 5; }));
  for (uint64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(server_.completions[i].wr_id, i);
    EXPECT_EQ(server_.completions[i].status, WcStatus::kFlushed);
  }
}

// A post to a dead queue pair is either refused or flushed, never lost.
TEST_P(ConformanceTest, PostingAfterDeathIsRefusedOrFlushed) {
  connect();
  client_.qp->disconnect("gone");
  Buffer& memory = buffer(client_, 64);
  const bool sent = post_send(client_, 1, memory.sge()).ok();
  const bool received = client_.qp->post_receive({.wr_id = 2, .sge = memory.sge()}).ok();
  ASSERT_TRUE(wait_for([&] { return client_.count(1) == sent && client_.count(2) == received; }));
}

TEST_P(ConformanceTest, CompletionsOfADestroyedQueuePairAreDropped) {
  connect();
  post_receive(client_, 1, buffer(client_, 64).sge());
  client_.qp->disconnect("gone");
  client_.qp.reset();
  for (int i = 0; i < 20; ++i) step();
  EXPECT_TRUE(client_.completions.empty());
}

TEST_P(ConformanceTest, ManyQueuePairsShareOneCompletionQueue) {
  constexpr size_t kCount = 12;
  std::vector<std::unique_ptr<QueuePair>> clients;
  std::map<uint32_t, size_t> received;
  for (size_t i = 0; i < kCount; ++i) {
    connect({}, {}, 1);
    clients.push_back(std::move(client_.qp));
    received[server_.qp->number()] = 0;
    spare_.push_back(std::move(server_.qp));
  }
  for (auto& qp : clients) {
    const Sge sge = buffer(client_, 32).sge();
    const WorkRequest request{.wr_id = 1, .sges = {&sge, 1}};
    ASSERT_TRUE(qp->post_send({&request, 1}).ok());
  }
  ASSERT_TRUE(wait_for([&] { return server_.completions.size() == kCount && client_.completions.size() == kCount; }));
  for (const Completion& completion : server_.completions) ++received[completion.qp_number];
  EXPECT_EQ(received.size(), kCount);
  for (const auto& [number, count] : received) EXPECT_EQ(count, 1u) << number;
}

TEST_P(ConformanceTest, ADisarmedQueueDeliversAndWakesNobody) {
  if (!provider_->has_wait_handles()) GTEST_SKIP() << "no wait handles";
  connect({}, {}, 4);
  Buffer& message = buffer(client_, 32);
  for (int i = 0; i < 3; ++i) step();
  server_.cq->arm();
  Completion out[4];
  ASSERT_EQ(server_.cq->poll(out), 0u);
  server_.cq->arm();
  const bool quiet = server_.cq->disarm();
  ASSERT_TRUE(post_send(client_, 1, message.sge()).ok());
  Completion sent[4];
  (void)client_.cq->poll(sent);
  if (quiet) {
    std::vector<WaitHandle> handles;
    server_.cq->append_wait_handles(handles);
    std::vector<pollfd> fds;
    for (const WaitHandle& handle : handles) fds.push_back({handle.fd, POLLIN, 0});
    EXPECT_EQ(::poll(fds.data(), fds.size(), 0), 0);
  }
  const TimeNs deadline = now_ns() + 10 * kSecond;
  size_t received = 0;
  while (received == 0 && now_ns() < deadline) received = server_.cq->poll(out);
  EXPECT_EQ(received, 1u);
}

TEST_P(ConformanceTest, AnArmedQueueIsWokenByAMessage) {
  if (!provider_->has_wait_handles()) GTEST_SKIP() << "no wait handles";
  connect({}, {}, 4);
  Buffer& message = buffer(client_, 32);
  for (uint64_t round = 0; round < 4; ++round) {
    for (int i = 0; i < 3; ++i) step();
    server_.cq->arm();
    Completion out[4];
    ASSERT_EQ(server_.cq->poll(out), 0u);
    if (round % 2 == 1) (void)server_.cq->disarm();  // which the next arm() makes good
    server_.cq->arm();
    ASSERT_TRUE(post_send(client_, round, message.sge()).ok());
    Completion sent[4];
    (void)client_.cq->poll(sent);
    // Each wake-up may be an empty one.
    const TimeNs deadline = now_ns() + 10 * kSecond;
    size_t received = 0;
    while (received == 0 && now_ns() < deadline) {
      std::vector<WaitHandle> handles;
      server_.cq->append_wait_handles(handles);
      ASSERT_FALSE(handles.empty());
      std::vector<pollfd> fds;
      for (const WaitHandle& handle : handles) {
        ASSERT_NE(handle.fd, WaitHandle::kPollAgain) << "nothing is left to do";
        fds.push_back({handle.fd, static_cast<short>(handle.want_write ? POLLIN | POLLOUT : POLLIN), 0});
      }
      ASSERT_GT(::poll(fds.data(), fds.size(), 10'000), 0) << "not woken";
      server_.cq->look_at_wait_handles();
      received = server_.cq->poll(out);
      server_.cq->arm();
    }
    ASSERT_EQ(received, 1u);
    EXPECT_EQ(out[0].wr_id, 1000 + round);
  }
}

// Where the provider has such a word; elsewhere only poll() tells.
TEST_P(ConformanceTest, AWordTellsOfTheNextMessage) {
  constexpr uint64_t kMessages = 4;
  connect({}, {}, kMessages);
  Buffer& message = buffer(client_, 32);
  for (uint64_t i = 0; i < kMessages; ++i) {
    for (int poll = 0; poll < 3; ++poll) step();
    const NextMessage next = server_.cq->next_message();
    if (next.word == nullptr) GTEST_SKIP() << "only poll() tells";
    EXPECT_FALSE(next.here());
    ASSERT_TRUE(post_send(client_, i, message.sge()).ok());
    const TimeNs deadline = now_ns() + provider_->patience();
    Completion out[4];
    while (!next.here() && now_ns() < deadline) (void)client_.cq->poll(out);
    ASSERT_TRUE(next.here());
    ASSERT_EQ(server_.cq->poll(out), 1u);
    EXPECT_EQ(out[0].wr_id, 1000 + i);
  }
}

// With a completion queue for each connection, as the driver has them, that is waited on.
TEST_P(ConformanceTest, AConnectionHoldsTwoDescriptorsAtEachEnd) {
  constexpr size_t kCount = 4;
  const auto open_descriptors = [] {
    size_t count = 0;
    for (int fd = 0; fd < 1024; ++fd) count += fcntl(fd, F_GETFD) >= 0;
    return count;
  };
  std::deque<End> kept;
  std::vector<WaitHandle> handles;
  size_t before = 0;
  for (size_t i = 0; i <= kCount; ++i) {
    if (i == 1) before = open_descriptors();  // with what is there once for all
    connect();
    for (End* end : {&client_, &server_}) {
      end->cq->arm();
      end->cq->append_wait_handles(handles);
      kept.emplace_back(std::move(*end));
      end->device = kept.back().device;
      end->cq = end->device->create_completion_queue(4096);
    }
  }
  EXPECT_LE(open_descriptors(), before + 2 * 2 * kCount);
}

TEST_P(ConformanceTest, TheListenersHandleTellsOfAConnection) {
  if (!provider_->has_wait_handles()) GTEST_SKIP() << "no wait handles";
  client_.qp = open_client();
  ASSERT_TRUE(client_.qp->start({}).ok());
  pollfd fd{listener_->wait_fd(), POLLIN, 0};
  const TimeNs deadline = deadline_after(now_ns(), 10 * kSecond);
  int told = 0;
  do {
    step();  // a client may have more than one thing to say
    told = ::poll(&fd, 1, 10);
  } while (told == 0 && now_ns() < deadline);
  EXPECT_EQ(told, 1);
}

}  // namespace rrpc::provider::conformance
