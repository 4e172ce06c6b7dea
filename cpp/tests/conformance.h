// The provider contract as tests, written once. A provider joins by a ProviderUnderTest and one line in
// provider_conformance_test.cc. Both ends live in one thread, polled in turn; waits have a deadline, no sleeps.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "provider/provider.h"
#include "shared_memory.h"

namespace rrpc::provider::conformance {

class ProviderUnderTest {
 public:
  virtual ~ProviderUnderTest() = default;
  virtual Device& server_device() = 0;
  virtual Device& client_device() = 0;
  virtual std::string listen_address() = 0;
  virtual std::string vacant_address() = 0;  // well formed, and nobody listens there
  virtual void settle() {}                   // called between polls: sim advances its clock
  virtual bool has_wait_handles() const { return true; }
  // Whether posted requests wait for others where they may.
  virtual bool requests_wait() const { return false; }
  // Whether a SEND completes only once the peer has it, so that its failures show in its own completion. Where
  // not, a SEND that the peer refuses may have completed before; the queue pair dies all the same.
  virtual bool sends_are_acknowledged() const { return true; }
  // The same for a WRITE. iWARP's are done once they are sent.
  virtual bool writes_are_acknowledged() const { return true; }
  // Whether a refused READ or WRITE completes with kRemoteAccess. On iWARP the peer ends the connection, and what was
  // outstanding is flushed.
  virtual bool refusals_are_named() const { return true; }
  // Whether READ is a right of its own. siw serves a READ of whatever is open to the peer at all, for writing too.
  virtual bool reads_need_a_right() const { return true; }
  // Soft-RoCE within one host carries READs out while they are posted: none is cut short by what follows.
  virtual bool reads_outlast_their_posting() const { return true; }
  // Whether poll() itself moves what READs and WRITEs are for.
  virtual bool polls_move_bytes() const { return false; }
  virtual TimeNs patience() const { return 10 * kSecond; }
};

struct ProviderFactory {
  std::string name;
  std::function<std::unique_ptr<ProviderUnderTest>()> make;
};
inline std::ostream& operator<<(std::ostream& out, const ProviderFactory& factory) { return out << factory.name; }
inline std::string factory_name(const ::testing::TestParamInfo<ProviderFactory>& info) { return info.param.name; }

struct Buffer {
  SharedBytes bytes;
  std::unique_ptr<MemoryRegion> region;

  Sge sge(size_t offset, size_t length_bytes) {
    return {bytes.data() + offset, static_cast<uint32_t>(length_bytes), region.get()};
  }
  Sge sge() { return sge(0, bytes.size()); }
  std::string text(size_t length_bytes) const { return {reinterpret_cast<const char*>(bytes.data()), length_bytes}; }
  void fill(uint32_t seed) {
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>((i * 31 + (i >> 8) + seed) & 0xff);
  }
};

struct End {
  Device* device = nullptr;
  std::unique_ptr<CompletionQueue> cq;
  std::unique_ptr<QueuePair> qp;
  std::vector<Completion> completions;  // polled, in order
  std::map<uint64_t, Sge> receives;     // posted last, by wr_id

  const Completion* find(uint64_t wr_id) const {
    for (const Completion& completion : completions) {
      if (completion.wr_id == wr_id) return &completion;
    }
    return nullptr;
  }
  size_t count(uint64_t wr_id) const {
    size_t n = 0;
    for (const Completion& completion : completions) n += completion.wr_id == wr_id;
    return n;
  }
  WcStatus status(uint64_t wr_id) const {
    const Completion* found = find(wr_id);
    return found != nullptr ? found->status : WcStatus::kFatal;
  }
  bool dead() const { return qp->state() == QueuePairState::kError; }
};

class ConformanceTest : public ::testing::TestWithParam<ProviderFactory> {
 protected:
  void SetUp() override {
    provider_ = GetParam().make();
    server_.device = &provider_->server_device();
    client_.device = &provider_->client_device();
    server_.cq = server_.device->create_completion_queue(4096);
    client_.cq = client_.device->create_completion_queue(4096);
    auto listener = server_.device->listen(provider_->listen_address(), {});
    ASSERT_TRUE(listener.ok()) << listener.status().to_string();
    listener_ = std::move(listener).value();
  }

  void TearDown() override {
    client_.qp.reset();
    server_.qp.reset();
    spare_.clear();
  }

  void step() {
    for (End* end : {&client_, &server_}) {
      Completion out[16];
      const size_t count = end->cq->poll(out);
      end->completions.insert(end->completions.end(), out, out + count);
      for (const Completion& completion : std::span(out).first(count)) {
        if (completion.place != nullptr && completion.status == WcStatus::kSuccess)
          std::memcpy(end->receives.at(completion.wr_id).address, completion.place, completion.length_bytes);
      }
    }
    provider_->settle();
  }

  template <typename Condition>
  [[nodiscard]] bool wait_for(Condition condition) {
    const TimeNs deadline = now_ns() + provider_->patience();
    while (!condition()) {
      if (now_ns() >= deadline) return false;
      step();
    }
    return true;
  }
  bool wait_done(const End& end, uint64_t wr_id) {
    return wait_for([&] { return end.find(wr_id) != nullptr; });
  }
  // Whether request `wr_id`, which the peer had to refuse, has completed as this transport can tell it.
  void expect_refused(const End& end, uint64_t wr_id) const {
    const Completion* completion = end.find(wr_id);
    ASSERT_NE(completion, nullptr);
    if (provider_->refusals_are_named()) {
      EXPECT_EQ(completion->status, WcStatus::kRemoteAccess) << wc_status_name(completion->status);
    } else if (completion->opcode != Opcode::kWrite || provider_->writes_are_acknowledged()) {
      EXPECT_NE(completion->status, WcStatus::kSuccess);
    }
  }
  bool wait_both_dead() {
    return wait_for([&] { return client_.dead() && server_.dead(); });
  }

  std::unique_ptr<QueuePair> open_client(const QueuePairConfig& config = {}) {
    auto qp = client_.device->open(*client_.cq, listener_->address(), config,
                                   deadline_after(now_ns(), provider_->patience()));
    EXPECT_TRUE(qp.ok()) << qp.status().to_string();
    return qp.ok() ? std::move(qp).value() : nullptr;
  }
  std::unique_ptr<QueuePair> accept_server(const QueuePairConfig& config = {}) {
    std::unique_ptr<QueuePair> qp;
    EXPECT_TRUE(wait_for([&] {
      auto accepted = listener_->accept(*server_.cq, config);
      EXPECT_TRUE(accepted.ok()) << accepted.status().to_string();
      if (accepted.ok()) qp = std::move(accepted).value();
      return qp != nullptr;
    }));
    return qp;
  }

  // Receives `receive_count` x 4 KiB at the server, wr_id 1000 + i.
  void connect(const QueuePairConfig& client_config = {}, const QueuePairConfig& server_config = {},
               size_t receive_count = 0) {
    client_.qp = open_client(client_config);
    const Status started = client_.qp->start(as_bytes("hello from the client"));
    ASSERT_TRUE(started.ok()) << started.to_string();
    server_.qp = accept_server(server_config);
    ASSERT_NE(server_.qp, nullptr);
    for (size_t i = 0; i < receive_count; ++i) post_receive(server_, 1000 + i, buffer(server_, 4096).sge());
    ASSERT_TRUE(server_.qp->start(as_bytes("hello from the server")).ok());
    ASSERT_TRUE(wait_for([&] { return connected(client_) && connected(server_); }))
        << client_.qp->error().to_string() << " / " << server_.qp->error().to_string();
  }
  static bool connected(const End& end) { return end.qp->state() == QueuePairState::kConnected; }

  // Owned by the fixture, so that it outlives every request that names it.
  Buffer& buffer(End& end, size_t length_bytes, uint32_t seed = 0) {
    Buffer& made = buffers_.emplace_back();
    made.bytes.resize(length_bytes);
    made.fill(seed);
    auto region = end.device->register_memory(shared_range(made.bytes));
    EXPECT_TRUE(region.ok()) << region.status().to_string();
    made.region = std::move(region).value();
    return made;
  }

  static void post_receive(End& end, uint64_t wr_id, const Sge& sge) {
    const Status status = end.qp->post_receive({.wr_id = wr_id, .sge = sge});
    ASSERT_TRUE(status.ok()) << status.to_string();
    end.receives[wr_id] = sge;
  }
  static Status post(End& end, const WorkRequest& request) { return end.qp->post_send({&request, 1}); }
  static Status post_send(End& end, uint64_t wr_id, const Sge& sge, bool signalled = true) {
    return post(end, {.wr_id = wr_id, .opcode = Opcode::kSend, .sges = {&sge, 1}, .signalled = signalled});
  }
  static Status post_bulk(End& end, Opcode opcode, uint64_t wr_id, const Sge& sge, const std::byte* remote,
                          uint32_t rkey) {
    return post(end, {.wr_id = wr_id,
                      .opcode = opcode,
                      .sges = {&sge, 1},
                      .remote_address = reinterpret_cast<uint64_t>(remote),
                      .rkey = rkey});
  }
  // As post_send(), and the message closes a key of its receiver's.
  static Status post_invalidating(End& end, uint64_t wr_id, const Sge& sge, uint32_t rkey) {
    return post(end, {.wr_id = wr_id, .sges = {&sge, 1}, .invalidate_rkey = rkey});
  }
  static uint32_t expose(End& end, Buffer& memory, size_t offset, size_t length_bytes, uint32_t access) {
    auto rkey = end.qp->expose(*memory.region, memory.bytes.data() + offset, length_bytes, access);
    EXPECT_TRUE(rkey.ok()) << rkey.status().to_string();
    return rkey.ok() ? *rkey : 0;
  }

  // Until then the contract asks that the memory stay as it is.
  void revoke(End& end, uint32_t rkey) {
    if (end.qp->revoke(rkey)) return;
    EXPECT_TRUE(wait_for([&] { return !end.qp->revoking(rkey); }));
  }

  std::unique_ptr<ProviderUnderTest> provider_;
  std::deque<Buffer> buffers_;
  End client_;
  End server_;
  std::vector<std::unique_ptr<QueuePair>> spare_;
  std::unique_ptr<Listener> listener_;
};

}  // namespace rrpc::provider::conformance
