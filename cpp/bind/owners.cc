#include "bind/owners.h"

#include <atomic>
#include <mutex>
#include <unordered_map>

#include "bind/plan/threads.h"
#include "driver/devices.h"
#include "endpoint/exposure.h"

namespace py = pybind11;

namespace rrpc::bind {
namespace {

// The owners of memory that are alive, by their addresses. Lives for good.
class Owners {
 public:
  // 0 if it isn't known.
  uint64_t find(PyObject* owner) {
    const std::lock_guard lock(latch_);
    const auto found = owners_.find(owner);
    return found == owners_.end() ? 0 : found->second.id;
  }
  // With a weak reference that forgets the owner; gives the id of the thread that was first. The reference of any other
  // thread goes, and its callback with it.
  uint64_t add(PyObject* owner, py::object& reference, uint64_t id) {
    const std::lock_guard lock(latch_);
    const auto [place, added] = owners_.try_emplace(owner, Owner{reference.ptr(), id});
    if (added) (void)reference.release();
    return place->second.id;
  }
  // Called while the owner's memory is still its own.
  void forget(PyObject* owner) {
    py::object reference;  // gone without the latch
    const std::lock_guard lock(latch_);
    const auto found = owners_.find(owner);
    if (found == owners_.end()) return;
    reference = py::reinterpret_steal<py::object>(found->second.reference);
    owners_.erase(found);
  }
  uint64_t next_id() { return next_id_.fetch_add(1, std::memory_order_relaxed); }

 private:
  struct Owner {
    PyObject* reference;
    uint64_t id;
  };
  Latch latch_;
  std::unordered_map<PyObject*, Owner> owners_;
  std::atomic<uint64_t> next_id_{1};
};

}  // namespace

uint64_t owner_id_of(PyObject* exporter) {
  static auto* const owners = new Owners();
  py::object owner = py::reinterpret_borrow<py::object>(exporter);
  while (py::hasattr(owner, "base") && !owner.attr("base").is_none()) owner = owner.attr("base");
  if (const uint64_t known = owners->find(owner.ptr())) return known;
  const uint64_t id = owners->next_id();
  const auto forget = [address = owner.ptr(), id](py::handle) {
    driver::evict_owner(id);
    owners->forget(address);
  };
  auto reference = py::reinterpret_steal<py::object>(PyWeakref_NewRef(owner.ptr(), py::cpp_function(forget).ptr()));
  if (!reference) {
    PyErr_Clear();  // bytes and the like take no weak references
    return endpoint::kNoOwner;
  }
  return owners->add(owner.ptr(), reference, id);
}

}  // namespace rrpc::bind
