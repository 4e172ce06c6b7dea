// How a queue pair opens memory to its peer: by memory windows, or by a registration for each exposure.
#pragma once

#include <infiniband/verbs.h>

#include <deque>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "provider/provider.h"
#include "provider/verbs/protection_domain.h"

namespace rrpc::provider::verbs {

class Exposures {
 public:
  virtual ~Exposures() = default;
  virtual ExposureKind kind() const = 0;
  virtual Result<uint32_t> open(const MemoryRegion& region, const std::byte* address, size_t length_bytes,
                                uint32_t access) = 0;
  // As QueuePair::revoke().
  virtual bool close(uint32_t rkey) = 0;
  virtual bool closing(uint32_t rkey) const = 0;
  // The work request that closes it is done.
  virtual void on_closed(uint32_t rkey) = 0;
  // A message of the peer's has closed it, as the adapter says. False: it wasn't open.
  virtual bool on_closed_by_peer(uint32_t rkey) = 0;
  // Those for which there was no room.
  virtual void post_deferred() = 0;
  // The queue pair is flushed, the device touches nothing any more: what is being closed is over.
  virtual void end_closing() = 0;
  // The queue pair is dead, no request of the peer's is carried out any more: all is closed at once.
  virtual void close_all() = 0;
};

// Work requests of its own, beside those of the queue pair's user.
class InternalWork {
 public:
  // ResourceExhausted when too many are outstanding.
  virtual Status post_bind(ibv_mw* window, uint32_t rkey, const ibv_mw_bind_info& bind) = 0;
  virtual Status post_invalidate(uint32_t rkey) = 0;
  // Does nothing, after what the adapter was at: on_closed(rkey) when it is done.
  virtual Status post_barrier(uint32_t rkey) = 0;
  virtual bool alive() const = 0;  // whether what is posted is still carried out
  // Whether the connection goes on, too: what it tells of the peer's messages is still heard.
  virtual bool connected() const = 0;

 protected:
  ~InternalWork() = default;
};

// Type-2 windows: bound to this queue pair, so that no other can use the key. A window is used again with its next key,
// and given back before its keys begin anew. It is invalidated once: by a message of the peer's or by a request of this
// end's. To invalidate it again is an error, and Soft-RoCE on Linux 6.1 takes the whole machine down over it.
class WindowExposures final : public Exposures {
 public:
  // `exact_registrations`: windows alone don't hold to their range, so each lies on a registration of just that range.
  WindowExposures(std::shared_ptr<ProtectionDomain> domain, InternalWork& work, bool exact_registrations)
      : domain_(std::move(domain)), work_(work), exact_registrations_(exact_registrations) {}
  ~WindowExposures() override { close_all(); }

  ExposureKind kind() const override { return ExposureKind::kWindow; }
  Result<uint32_t> open(const MemoryRegion& region, const std::byte* address, size_t length_bytes,
                        uint32_t access) override;
  bool close(uint32_t rkey) override;
  bool closing(uint32_t rkey) const override;
  void on_closed(uint32_t rkey) override;
  bool on_closed_by_peer(uint32_t rkey) override;
  void post_deferred() override;
  void end_closing() override;
  void close_all() override;

 private:
  enum class State : uint8_t {
    kOpen,
    kClosedByPeer,  // its owner has yet to close it
    kClosing,       // a request that invalidates it is posted or deferred
  };
  struct Window {
    ibv_mw* handle = nullptr;
    uint32_t key = 0;
    uint32_t bind_count = 0;
    ibv_mr* exact = nullptr;  // what it is bound to, if that is its own
    State state = State::kOpen;
  };

  Result<Window> take_window();
  Result<ibv_mr*> registration_for(const MemoryRegion& region, const std::byte* address, size_t length_bytes);
  static void release(Window& window);
  void give_back(const Window& window);

  const std::shared_ptr<ProtectionDomain> domain_;
  InternalWork& work_;
  const bool exact_registrations_;
  std::unordered_map<uint32_t, Window> bound_;  // by key
  std::deque<Window> free_;                     // used longest ago first
  std::deque<uint32_t> deferred_;
};

// The queue pair's protection domain is its own, so a registration in it is open to its peer alone. siw goes on with
// the READ that it is serving when the registration goes, and pays attention before the next: closing ends with a
// request that is sent after that.
class RegistrationExposures final : public Exposures {
 public:
  RegistrationExposures(std::shared_ptr<ProtectionDomain> domain, InternalWork& work)
      : domain_(std::move(domain)), work_(work) {}
  ~RegistrationExposures() override { close_all(); }

  ExposureKind kind() const override { return ExposureKind::kRegistration; }
  Result<uint32_t> open(const MemoryRegion& region, const std::byte* address, size_t length_bytes,
                        uint32_t access) override;
  bool close(uint32_t rkey) override;
  bool closing(uint32_t rkey) const override { return closing_.contains(rkey) && work_.alive(); }
  void on_closed(uint32_t rkey) override { closing_.erase(rkey); }
  // A registration that the peer has invalidated (Soft-iWARP lets it) is none that this end has closed.
  bool on_closed_by_peer(uint32_t /*rkey*/) override { return false; }
  void post_deferred() override;
  void end_closing() override;
  void close_all() override;

 private:
  const std::shared_ptr<ProtectionDomain> domain_;
  InternalWork& work_;
  std::unordered_map<uint32_t, ibv_mr*> registrations_;  // by key
  std::unordered_set<uint32_t> closing_;
  std::deque<uint32_t> deferred_;
};

}  // namespace rrpc::provider::verbs
