// The transport contract, shaped like verbs because verbs is the real thing and the others stand in for it.
//
// Rules that every provider keeps, and that provider/conformance checks:
//  - A receive must be posted before a send may land; a send that finds none fails with kRnrRetryExceeded
//    and both queue pairs go to the error state.
//  - Work requests of one queue pair take effect in the order posted; completions of the send queue come
//    in that order, and so do those of the receive queue.
//  - Every posted receive and every signalled send-queue request ends in exactly one completion, also when
//    the queue pair dies or is disconnected: then with kFlushed. An unsignalled request completes only
//    when it fails, and a message of reserve_message() not even then.
//  - Memory named by a posted request belongs to the device until its completion (for an inline send:
//    until post_send returns).
//  - READ and WRITE name (remote address, rkey) and are refused with kRemoteAccess outside the exposed range or
//    its rights. A READ that overlaps a revocation never completes as success with bytes from after it.
//    What refused it dies: the requester's queue pair goes to the error state, as in verbs.
//  - A peer's bytes never crash or block the process: a malformed one puts the queue pair into the error
//    state with a protocol_error() in error().
//
// Threads: calls on one CompletionQueue and the queue pairs attached to it must not overlap in time (the
// driver holds one mutex for them). Device and MemoryRegion may be used from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/result.h"
#include "provider/identity.h"
#include "provider/lending.h"
#include "provider/ready_bits.h"
#include "provider/tls.h"

namespace rrpc::provider {

enum Access : uint32_t {
  kRemoteRead = 1,
  kRemoteWrite = 2,
  kLend = 4,  // beside kRemoteRead: the peer may read the range in place, see lending.h
};

enum class Opcode : uint8_t { kSend, kReceive, kRead, kWrite };

// The verbs work-completion statuses that matter here.
enum class WcStatus : uint8_t {
  kSuccess,
  kLocalLength,       // a message longer than the receive that it landed in
  kLocalProtection,   // a scatter/gather element outside its memory region
  kFlushed,           // the queue pair died before the request ran
  kRemoteAccess,      // rkey, range or rights refused
  kRemoteOperation,   // the peer could not carry it out
  kRetryExceeded,     // the peer doesn't answer
  kRnrRetryExceeded,  // no receive was posted there
  kFatal,
};
std::string_view wc_status_name(WcStatus status);

// A range to register. `fd` names the shared-memory file behind it (or -1), open while the region lives: providers on
// one host hand it to the peer; others ignore it. All ranges of a file that are registered at a time lie in one mapping
// of it.
// `dmabuf_fd` names the dma-buf of memory that is a device's (or -1), open until it is registered. `address` is then
// what peers call it by and is never followed here, `file_offset` its place in the dma-buf. Verbs alone take it, and
// only adapters whose drivers do (ibv_reg_dmabuf_mr); elsewhere registering or exposing it fails with Unimplemented.
struct MemoryRange {
  std::byte* address = nullptr;
  size_t length_bytes = 0;
  int fd = -1;
  bool peers_may_write = false;  // whether `fd` can be mapped for writing by a peer
  bool read_sink = false;        // registered for one transfer: only READs land here (see dedicated_read_sinks)
  bool of_user = false;          // an array outside the pool: adapters that bring in pages on demand needn't pin it
  bool only_read = false;        // nothing lands here, so that it may be memory which the process can't write
  uint64_t file_offset = 0;      // of `address` in the file
  int dmabuf_fd = -1;
};

// What to do where a device's memory can't be had; to stand at the end of an error.
inline constexpr char kStageCure[] =
    "; copy the array to the host, or have it copied with rrpc.set_device_tensors(\"stage\")";

// Unimplemented for a range of a device's memory: for providers that copy by the processor.
Status check_host_memory(const MemoryRange& range);

// Locally registered memory. Deregistered by its destructor; no exposure of it may be live by then.
class MemoryRegion {
 public:
  virtual ~MemoryRegion() = default;
  const MemoryRange& range() const { return range_; }
  uint32_t lkey() const { return lkey_; }
  bool contains(const std::byte* address, size_t length_bytes) const {
    return address >= range_.address && length_bytes <= range_.length_bytes &&
           static_cast<size_t>(address - range_.address) <= range_.length_bytes - length_bytes;
  }

 protected:
  MemoryRegion(MemoryRange range, uint32_t lkey) : range_(range), lkey_(lkey) {}

 private:
  MemoryRange range_;
  uint32_t lkey_;
};

// One scatter/gather element: local memory inside a registered region. `region` may be null only for
// inline sends.
struct Sge {
  std::byte* address = nullptr;
  uint32_t length_bytes = 0;
  const MemoryRegion* region = nullptr;
};

constexpr size_t kPushesMax = 8;  // behind one message

// A range that this end has exposed for reading.
struct RemoteRange {
  uint64_t address = 0;
  uint64_t length_bytes = 0;
  uint32_t rkey = 0;
};

struct WorkRequest {
  uint64_t wr_id = 0;
  Opcode opcode = Opcode::kSend;
  std::span<const Sge> sges;    // copied by post_send: need not outlive the call
  uint64_t remote_address = 0;  // kRead, kWrite
  uint32_t rkey = 0;            // kRead, kWrite
  bool signalled = true;
  bool inline_data = false;  // kSend up to limits().inline_bytes_max: bytes are taken before the call returns
  bool more = false;         // of the last one that is posted together: as commit_message() has it
  bool solicited = true;     // kSend: false where it may wait until the peer looks (CompletionQueue::arm_for_solicited)
  // kSend: what the peer is going to READ on account of it. Where limits().pushed_bytes_max allows their bytes follow
  // the message, and a READ that the peer posts when it has the message waits for them instead of asking. Only a hint:
  // exposures, READs and their completions are as without it.
  std::span<const RemoteRange> pushes = {};
  // kSend, where limits().invalidates: a key of the peer's that its adapter closes when the message arrives, as
  // revoke() there would; 0: none. It must be open to this end, and what READs and WRITEs under it must have completed:
  // over another key the peer's adapter ends the connection, and nothing fences those before it.
  uint32_t invalidate_rkey = 0;
};

struct ReceiveRequest {
  uint64_t wr_id = 0;
  Sge sge;
};

struct Completion {
  uint64_t wr_id = 0;
  Opcode opcode = Opcode::kSend;
  WcStatus status = WcStatus::kSuccess;
  uint32_t length_bytes = 0;  // of a receive: what landed
  uint32_t qp_number = 0;
  // Of a receive whose message doesn't lie in it: where it does, until the next poll(), or until a receive is posted in
  // place of this one, which those posted for the completions before it aren't.
  const std::byte* place = nullptr;
};

struct QueuePairLimits {
  uint32_t send_depth = 0;  // requests posted and not completed
  uint32_t receive_depth = 0;
  uint32_t sge_count_max = 0;  // of a send or write
  uint32_t read_sge_count_max = 0;
  uint32_t read_depth = 0;  // READs in flight
  uint32_t inline_bytes_max = 0;
  uint32_t message_bytes_max = 0;  // of one READ or WRITE
  uint32_t pushed_bytes_max = 0;   // behind one message, whole ranges; 0: there are none (WorkRequest::pushes)
  bool messages_complete = false;  // those of reserve_message() take places in the send queue (commit_message())
  // A message may close a key at its receiver (WorkRequest::invalidate_rkey): this end's messages may, and the peer's
  // may close what this end has exposed. To be used only where both ends' limits say so.
  bool invalidates = false;
  // iWARP: what a READ lands in must itself be open to writing by the peer, so it is registered for that transfer
  // alone (MemoryRange::read_sink), never as part of something larger.
  bool dedicated_read_sinks = false;
  // The peer itself copies into posted receives: they lie in shared memory with MemoryRange::peers_may_write, of this
  // connection alone. Their file is needed until start() has returned.
  bool receives_in_shared_memory = false;
};

// How expose() keeps an exposure to its range, its rights and its peer.
enum class ExposureKind : uint8_t {
  kChecked,       // the owner or the reader checks each access against a table
  kWindow,        // a type-2 memory window, bound for each exposure and invalidated after it
  kRegistration,  // a registration for each exposure, in a protection domain that only this peer has
};
std::string_view exposure_kind_name(ExposureKind kind);

// Receives that many queue pairs draw from, for servers with many clients. Thread-safe; outlives its queue pairs.
class SharedReceiveQueue {
 public:
  virtual ~SharedReceiveQueue() = default;
  virtual uint32_t depth() const = 0;
  // The completion comes to the completion queue of the queue pair whose message took the receive. Receives that
  // no message took are not flushed: they stay with the queue until it is destroyed. Before a queue pair is destroyed
  // it is disconnected and polled until nothing comes; what it took and had not completed by then is posted again.
  // A wr_id stands for one receive at a time; there are depth() of them for good. In their order, with one doorbell
  // where there is such a thing. After an error some may be posted.
  virtual Status post(std::span<const ReceiveRequest> requests) = 0;
  // How often fewer than the limit (an eighth of the depth) were left.
  virtual uint64_t limit_events() const = 0;
};

struct QueuePairConfig {
  uint32_t send_depth = 128;
  uint32_t receive_depth = 64;
  uint32_t read_depth = 16;
  // Instead of receives of its own; post_receive() is refused then. A peer that lets more than receive_depth messages
  // come that weren't polled ends its connection.
  SharedReceiveQueue* shared_receives = nullptr;
  std::shared_ptr<TlsContext> tls = nullptr;  // of a client over tcp; null: in clear
};

// What to wait on when nothing is left to poll: a descriptor, or kPollAgain where something is. Valid until the next
// call on the completion queue or its queue pairs, which may close the descriptor.
struct WaitHandle {
  static constexpr int kPollAgain = -1;
  int fd = kPollAgain;
  bool want_write = false;
  bool operator==(const WaitHandle&) const = default;
};

// A word of memory that the peer writes when its next message is there, for a look that calls nobody.
struct NextMessage {
  const std::atomic<uint32_t>* word = nullptr;  // null: only poll() tells
  uint32_t value = 0;
  // Where it isn't null the peer raises this bit after it has written the word, so that not even a look is needed, and
  // where the poller of these bits sleeps it makes a wait handle ready.
  ReadyBits* bits = nullptr;
  uint32_t bit = 0;
  bool here() const { return word == nullptr || word->load(std::memory_order_relaxed) == value; }
};

class CompletionQueue {
 public:
  virtual ~CompletionQueue() = default;
  // Drives the attached queue pairs (handshake, transfers) and moves up to out.size() completions.
  virtual size_t poll(std::span<Completion> out) = 0;
  // After arm(), what the peer does makes a wait handle ready. Poll once more after arming, then sleep; once a handle
  // is ready, look_at_wait_handles(). A poll() disarms. Cheap: no system call on the providers of one host. Whoever
  // calls the completion queue or its queue pairs while another thread sleeps compares the handles afterwards, and
  // wakes it where they are others than those it has.
  virtual void arm() = 0;
  // As arm(), but for messages that were posted as solicited, and for what else happens: the others wait for a poll
  // that something else brings about. Where `knows_solicited()` is false it is arm().
  virtual void arm_for_solicited() { arm(); }
  virtual bool knows_solicited() const { return false; }
  virtual void append_wait_handles(std::vector<WaitHandle>& out) const = 0;
  // Whether the wait handles tell without arm() of all that comes: once they may be waited for by edges, from a poll()
  // on that found nothing.
  virtual bool handles_tell_all() const { return false; }
  // Whether poll() finds out without a system call that there is nothing.
  virtual bool polls_cheaply() const { return true; }
  // After a poll() that found nothing: until the next message is here, or somebody calls the completion queue or a
  // queue pair of it, a poll() finds nothing but what makes a wait handle ready. The word stays as long as the queue
  // pairs.
  virtual NextMessage next_message() const { return {}; }
  // Whether READs or WRITEs, of either end, moved bytes in the last poll(), which may have completed none of them.
  virtual bool moved_bytes() const { return false; }
  // Takes arm() back, for somebody who is going to poll. Whether no wait handle becomes ready for a message from now
  // on.
  virtual bool disarm() { return false; }
  // The next poll() looks at all of them; it needn't always.
  virtual void look_at_wait_handles() {}
  // Whether what a disconnected queue pair had still to say is on its way, or the device has yet to let go of it: poll
  // on, for some seconds at most.
  virtual bool lingering() const { return false; }
};

// What the transport calls the two ends of one queue pair; "" where nobody can come in between.
struct EndNames {
  std::string own;
  std::string peer;
};

enum class QueuePairState : uint8_t { kInit, kConnecting, kConnected, kError };

// kInit: post receives, then start(). kConnecting: poll the completion queue until the state moves.
class QueuePair {
 public:
  virtual ~QueuePair() = default;  // takes outstanding work back; completions not yet polled are dropped

  uint32_t number() const { return number_; }
  virtual QueuePairState state() const = 0;
  // Why the queue pair is in the error state; "peer closed" is Unavailable.
  virtual const Status& error() const = 0;
  virtual const QueuePairLimits& limits() const = 0;

  // Connects (client) or accepts (server). `private_data` reaches the peer with the offer or the answer;
  // at most kPrivateDataBytesMax.
  virtual Status start(Bytes private_data) = 0;
  // The peer's; empty until kConnected, or, on a server whose transport brings it with the request, from accept() on.
  // May be longer than what was sent (zero padded), as in rdma_cm. No receive completes before kConnected.
  virtual Bytes peer_private_data() const = 0;
  // "peer pid 1234 uid 0" or "10.0.0.1:4711".
  virtual std::string peer_description() const = 0;
  // This end's, in the same form; empty where it has none.
  virtual std::string local_description() const = 0;
  // Known once the state is kConnected, and the same from then on.
  virtual const PeerIdentity& peer_identity() const;
  // How what travels is kept from others, once the state is kConnected: "TLSv1.3 TLS_AES_256_GCM_SHA384"; empty: not
  // at all.
  virtual std::string_view protection() const { return {}; }
  // A key that both ends have and nobody else, for proofs that one who comes another way is the same; none without TLS.
  virtual std::optional<ExportedKey> export_key(std::string_view /*label*/) const { return std::nullopt; }
  // The peer's has them the other way round. Once the state is kConnected.
  virtual EndNames end_names() const { return {}; }
  // How this end's packets are marked, by name ("traffic_class", ...); empty where no fabric is told.
  virtual std::map<std::string, std::string> fabric_marks() const { return {}; }
  // How bulk moves, for rrpc.stats() and rrpc-info: "process_vm_readv", "staged", "socket", ...
  virtual std::string_view bulk_method() const = 0;

  virtual Status post_receive(const ReceiveRequest& request) = 0;
  // The same in their order, with one doorbell where there is such a thing. After an error some may be posted.
  virtual Status post_receives(std::span<const ReceiveRequest> requests) {
    for (const ReceiveRequest& request : requests) RRPC_RETURN_IF_ERROR(post_receive(request));
    return {};
  }
  // Posts the receive that completed under this id again. The id has stood for the same memory, and the region around
  // that has been there, all the time. The device may get it as late as with the next message or poll(). False: nothing
  // was done, and post_receive() does it.
  virtual bool post_again(uint64_t wr_id);
  // Reserves room for a message and returns where to write it, or null if it must go through post_send(). Write all of
  // it and call commit_message() before any other call on this queue pair. The message is then sent in order with the
  // posted ones.
  virtual std::byte* reserve_message(uint32_t length_bytes);
  // `more`: another message may follow at once. This one may then wait for it, so that both go out with one doorbell,
  // but no longer than until ring(), the next post_send(), or the next poll() that gives no completion. `wr_id`: where
  // limits().messages_complete, what it completes under, as a signalled request; kNoCompletion, and elsewhere: it has
  // no completion. Gives whether it waits.
  virtual bool commit_message(bool more, uint64_t wr_id);
  static constexpr uint64_t kNoCompletion = 0;
  // Whether messages or requests wait for another one.
  virtual bool holds() const { return false; }
  // Sends them.
  virtual void ring() {}
  // All or none is posted. ResourceExhausted when the send queue is full.
  virtual Status post_send(std::span<const WorkRequest> requests) = 0;

  // Opens a range of `region` to this peer and no other, with these rights and no more; gives the rkey. The remote
  // address is `address`. FailedPrecondition where this peer cannot reach that memory (the caller then
  // stages it in pool memory), or, with kLend, where it can't be lent. revoke() takes it back at once.
  virtual Result<uint32_t> expose(const MemoryRegion& region, const std::byte* address, size_t length_bytes,
                                  uint32_t access) = 0;
  // From now on wait_for_exposures() sees to it that what was exposed is open, so that another queue pair's message may
  // tell of it; this one's come after it anyway. False: it isn't after some milliseconds.
  virtual void tell_exposed() {}
  virtual bool wait_for_exposures() { return true; }
  // Takes it back. True: it is over. False: it is under way (a work request of its own): the memory and its region
  // must stay as they are until revoking() is false, as it will be after the connection's end too, or the queue pair
  // is destroyed. A key that a message of the peer's has closed (WorkRequest::invalidate_rkey) is taken back at once.
  virtual bool revoke(uint32_t rkey) = 0;
  // Whether this peer can read some of this process's memory in place: where not, nothing is exposed with kLend.
  virtual bool lends() const { return false; }
  // revoke() for a range that was exposed with kLend. Null: it is over. Otherwise the peer reads the range in place,
  // and its memory stays as it is until the loan has been returned. To be called before the queue pair is destroyed.
  virtual std::unique_ptr<Loan> end_lending(uint32_t /*rkey*/) { return nullptr; }
  // Borrows a range that the peer has exposed with kLend, in whole or in part, once. An error where that can't be done,
  // now or at all: the range may still be READ.
  virtual Result<std::unique_ptr<BorrowedRange>> borrow(uint32_t /*rkey*/, uint64_t /*remote_address*/,
                                                        uint64_t /*length_bytes*/) {
    return failed_precondition("this transport can't reach the peer's memory in place");
  }
  // Whether memory that other peers are given, too, may be exposed to this one. Where not (it is another user's
  // process, and sees whole files), whatever is exposed to it lies in files that it alone is given.
  virtual bool reaches_pool() const { return true; }
  virtual bool revoking(uint32_t) const { return false; }
  virtual ExposureKind exposure_kind() const { return ExposureKind::kChecked; }
  // Readies a region for this queue pair's requests, so that what may fail for want of pinned memory fails here and
  // not in the middle of a transfer. Posting does it too.
  virtual Status adopt(const MemoryRegion&) { return {}; }

  // Ends the connection in order; the peer sees it too. The state becomes kError, outstanding work is flushed. What was
  // posted before is still delivered where the transport can (a reply, a goodbye). Before start(), on a server: rejects
  // the connection, with the reason where the transport can carry it.
  virtual void disconnect(const std::string& reason) = 0;
  // Once it has ended and nothing lingers: whether the device still has something of it, and gives that back, which
  // takes some system calls. The destructor does so too.
  virtual bool holds_device() const { return false; }
  virtual void release_device() {}
  // Of one that draws from a shared queue, and whose peer let more messages come than it may: some receives that they
  // took are told by nobody.
  virtual bool lost_receives() const { return false; }

 protected:
  explicit QueuePair(uint32_t number) : number_(number) {}

 private:
  uint32_t number_;
};

constexpr size_t kPrivateDataBytesMax = 56;  // rdma_cm's room over reliable connections

class Listener {
 public:
  virtual ~Listener() = default;
  // With the port or path really bound.
  virtual const std::string& address() const = 0;
  virtual int wait_fd() const = 0;
  // The next connection offered, in kInit, or null when none waits. Post receives and start() to accept it. Never
  // blocks. An error concerns one connection attempt unless listener_failed().
  virtual Result<std::unique_ptr<QueuePair>> accept(CompletionQueue& cq, const QueuePairConfig& config) = 0;
  // For the connections of this listener. FailedPrecondition where there is no such thing.
  virtual Result<std::unique_ptr<SharedReceiveQueue>> create_shared_receive_queue(uint32_t /*depth*/) {
    return failed_precondition("this transport has no shared receive queues");
  }
};

struct ListenOptions {
  int backlog = 1024;
  bool any_user = false;                      // same-host providers: let other users in (modes 0666)
  std::shared_ptr<TlsContext> tls = nullptr;  // over tcp: every client must speak TLS; null: in clear
};

// A parsed address without its scheme: "127.0.0.1:7471", "/run/x.sock".
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;  // "shm", "tcp", "verbs", "verbs+tcp", "sim"
  // The adapters behind it, one entry for each port: "name", "port", "state", "transport" (InfiniBand, RoCE, iWARP),
  // "link_layer", "active_mtu", "gids", "addresses" (IP addresses at which rdma_cm reaches it: "10.9.0.1,fd00::1"),
  // "exposure" (exposure_kind_name()), ...; "why_not" if it isn't usable.
  virtual std::vector<std::map<std::string, std::string>> describe() { return {}; }
  virtual Result<std::unique_ptr<MemoryRegion>> register_memory(const MemoryRange& range) = 0;
  virtual std::unique_ptr<CompletionQueue> create_completion_queue(uint32_t depth) = 0;
  virtual Result<std::unique_ptr<Listener>> listen(const std::string& address, const ListenOptions& options) = 0;
  // Resolves the address and makes a queue pair in kInit. May block (name resolution) up to the deadline.
  virtual Result<std::unique_ptr<QueuePair>> open(CompletionQueue& cq, const std::string& address,
                                                  const QueuePairConfig& config, TimeNs deadline) = 0;
};

}  // namespace rrpc::provider
