#include "provider/verbs/exposures.h"

#include <cerrno>
#include <utility>

#include "provider/verbs/errors.h"
#include "provider/verbs/region.h"
#include "provider/verbs/registering.h"

namespace rrpc::provider::verbs {

// The key's low byte is ours to count up. The first that a window comes with is never used.
static constexpr uint32_t kBindsPerWindow = 255;

static Status check_exposure(const MemoryRegion& region, const std::byte* address, size_t length_bytes,
                             uint32_t access) {
  if (!region.contains(address, length_bytes)) return invalid_argument("the range to expose leaves its memory region");
  if (length_bytes == 0) return invalid_argument("an empty range can't be exposed");
  if ((access & kRemoteWrite) != 0 && region.range().only_read)
    return invalid_argument("memory registered to be read only can't be opened for writing");
  if (access == 0 || (access & ~(kRemoteRead | kRemoteWrite)) != 0) return invalid_argument("bad access rights");
  return {};
}

static unsigned remote_rights(uint32_t access) {
  return ((access & kRemoteRead) != 0 ? unsigned{IBV_ACCESS_REMOTE_READ} : 0u) |
         ((access & kRemoteWrite) != 0 ? unsigned{IBV_ACCESS_REMOTE_WRITE} : 0u);
}

Result<WindowExposures::Window> WindowExposures::take_window() {
  if (!free_.empty()) {
    const Window window = free_.front();
    free_.pop_front();
    return window;
  }
  errno = 0;
  ibv_mw* handle = ibv_alloc_mw(domain_->handle(), IBV_MW_TYPE_2);
  if (handle == nullptr) return verbs_error(errno, "making a memory window");
  return Window{.handle = handle, .key = handle->rkey};
}

Result<ibv_mr*> WindowExposures::registration_for(const MemoryRegion& region, const std::byte* address,
                                                  size_t length_bytes) {
  if (!exact_registrations_) return static_cast<const VerbsRegion&>(region).registration_in(domain_);
  return register_with_adapter(
      domain_->handle(), region.range(), address, length_bytes,
      local_rights(region.range()) | domain_->paging_right(region.range()) | IBV_ACCESS_MW_BIND);
}

// The window first: it holds what it is bound to.
void WindowExposures::release(Window& window) {
  ibv_dealloc_mw(window.handle);
  if (window.exact != nullptr) ibv_dereg_mr(window.exact);
}

void WindowExposures::give_back(const Window& window) {
  if (window.bind_count < kBindsPerWindow) {
    free_.push_back(window);
  } else {
    ibv_dealloc_mw(window.handle);
  }
}

Result<uint32_t> WindowExposures::open(const MemoryRegion& region, const std::byte* address, size_t length_bytes,
                                       uint32_t access) {
  RRPC_RETURN_IF_ERROR(check_exposure(region, address, length_bytes, access));
  RRPC_ASSIGN_OR_RETURN(Window window, take_window());
  auto registration = registration_for(region, address, length_bytes);
  if (!registration.ok()) {
    free_.push_front(window);
    return registration.status();
  }
  if (exact_registrations_) window.exact = *registration;
  const uint32_t key = ibv_inc_rkey(window.key);
  const ibv_mw_bind_info bind{.mr = *registration,
                              .addr = reinterpret_cast<uint64_t>(address),
                              .length = length_bytes,
                              .mw_access_flags = remote_rights(access)};
  if (Status status = work_.post_bind(window.handle, key, bind); !status.ok()) {
    if (window.exact != nullptr) ibv_dereg_mr(std::exchange(window.exact, nullptr));
    free_.push_front(window);
    return status;
  }
  window.key = window.handle->rkey = key;  // drivers tell the next bind's window by the key of the last
  ++window.bind_count;
  window.state = State::kOpen;
  bound_.emplace(key, window);
  return key;
}

bool WindowExposures::close(uint32_t rkey) {
  const auto found = bound_.find(rkey);
  if (found == bound_.end()) return true;
  Window& window = found->second;
  if (window.state == State::kClosedByPeer) return on_closed(rkey), true;
  if (window.state == State::kClosing && work_.alive()) return false;
  // A connection that is being ended: the peer's last message may invalidate the window, and nobody would hear of it.
  if (!work_.connected()) {
    release(window);
    bound_.erase(found);
    return true;
  }
  window.state = State::kClosing;
  if (!deferred_.empty() || !work_.post_invalidate(rkey).ok()) deferred_.push_back(rkey);
  return false;
}

bool WindowExposures::closing(uint32_t rkey) const {
  const auto found = bound_.find(rkey);
  return found != bound_.end() && found->second.state == State::kClosing;
}

void WindowExposures::post_deferred() {
  while (!deferred_.empty() && work_.post_invalidate(deferred_.front()).ok()) deferred_.pop_front();
}

void WindowExposures::on_closed(uint32_t rkey) {
  const auto found = bound_.find(rkey);
  if (found == bound_.end()) return;
  Window window = found->second;
  bound_.erase(found);
  if (window.exact != nullptr) ibv_dereg_mr(std::exchange(window.exact, nullptr));
  give_back(window);
}

// The peer may close a key that is open to it, once. To close it again, or one that is being closed here, is its fault.
bool WindowExposures::on_closed_by_peer(uint32_t rkey) {
  const auto found = bound_.find(rkey);
  if (found == bound_.end() || found->second.state != State::kOpen) return false;
  found->second.state = State::kClosedByPeer;
  return true;
}

// Of an invalidation that was flushed nothing more is heard.
void WindowExposures::end_closing() {
  deferred_.clear();
  for (auto at = bound_.begin(); at != bound_.end();) {
    if (at->second.state == State::kClosing) {
      release(at->second);
      at = bound_.erase(at);
    } else {
      ++at;
    }
  }
}

void WindowExposures::close_all() {
  for (auto& [key, window] : bound_) release(window);
  for (Window& window : free_) release(window);
  bound_.clear();
  free_.clear();
  deferred_.clear();
}

Result<uint32_t> RegistrationExposures::open(const MemoryRegion& region, const std::byte* address, size_t length_bytes,
                                             uint32_t access) {
  RRPC_RETURN_IF_ERROR(check_exposure(region, address, length_bytes, access));
  unsigned rights = remote_rights(access);
  if ((access & kRemoteWrite) != 0) rights |= IBV_ACCESS_LOCAL_WRITE;  // the one needs the other
  RRPC_ASSIGN_OR_RETURN(ibv_mr * registration,
                        register_with_adapter(domain_->handle(), region.range(), address, length_bytes,
                                              static_cast<int>(rights) | domain_->paging_right(region.range())));
  registrations_.emplace(registration->rkey, registration);
  return registration->rkey;
}

bool RegistrationExposures::close(uint32_t rkey) {
  const auto found = registrations_.find(rkey);
  if (found == registrations_.end()) return !closing(rkey);
  ibv_dereg_mr(found->second);
  registrations_.erase(found);
  if (!work_.alive()) return true;
  closing_.insert(rkey);
  if (!deferred_.empty() || !work_.post_barrier(rkey).ok()) deferred_.push_back(rkey);
  return false;
}

void RegistrationExposures::post_deferred() {
  while (!deferred_.empty() && work_.post_barrier(deferred_.front()).ok()) deferred_.pop_front();
}

void RegistrationExposures::end_closing() {
  closing_.clear();
  deferred_.clear();
}

void RegistrationExposures::close_all() {
  for (const auto& [key, registration] : registrations_) ibv_dereg_mr(registration);
  registrations_.clear();
  closing_.clear();
  deferred_.clear();
}

}  // namespace rrpc::provider::verbs
