#include "bind/watched_buffer.h"

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "bind/deferred.h"
#include "bind/plan/threads.h"
#include "endpoint/counters.h"

namespace rrpc::bind {
namespace {

Latch g_latch;
std::atomic<PyObject*> g_begin{nullptr};  // changes with the latch

// Of words, in lanes beside each other so that it runs at memory speed. Not cryptographic: changes come by accident.
uint64_t sum_of(const std::vector<MutableBytes>& pieces) {
  constexpr uint64_t kFactor = 0x9e3779b97f4a7c15;
  std::array<uint64_t, 4> lanes{1, 2, 3, 4};
  for (const MutableBytes& piece : pieces) {
    size_t at = 0;
    for (; at + sizeof(lanes) <= piece.size(); at += sizeof(lanes)) {
      std::array<uint64_t, 4> words;
      std::memcpy(words.data(), piece.data() + at, sizeof(words));
      for (size_t i = 0; i < lanes.size(); ++i) lanes[i] = (lanes[i] ^ words[i]) * kFactor;
    }
    for (; at < piece.size(); ++at) lanes[0] = (lanes[0] ^ static_cast<uint64_t>(piece[at])) * kFactor;
  }
  return lanes[0] ^ (lanes[1] << 1) ^ (lanes[2] << 2) ^ (lanes[3] << 3);
}

class WatchedHold : public endpoint::Hold {
 public:
  WatchedHold(std::shared_ptr<endpoint::Hold> hold, std::vector<MutableBytes> pieces, PyObject* changed)
      : hold_(std::move(hold)), pieces_(std::move(pieces)), sum_(sum_of(pieces_)), changed_(changed) {}
  WatchedHold(const WatchedHold&) = delete;
  WatchedHold& operator=(const WatchedHold&) = delete;
  ~WatchedHold() override {
    if (sum_of(pieces_) == sum_) {
      defer_release(changed_);
    } else {
      endpoint::count(endpoint::counters().arrays_changed);
      defer_callback(changed_);
    }
  }

 private:
  const std::shared_ptr<endpoint::Hold> hold_;  // of what the pieces are of
  const std::vector<MutableBytes> pieces_;
  const uint64_t sum_;
  PyObject* const changed_;
};

}  // namespace

void watch_buffers(const py::object& begin) {
  py::object before;  // gone without the latch
  const std::lock_guard lock(g_latch);
  before = py::reinterpret_steal<py::object>(g_begin.exchange(begin.is_none() ? nullptr : Py_NewRef(begin.ptr())));
}

std::shared_ptr<endpoint::Hold> watched(const endpoint::Buffer& buffer) {
  if (g_begin.load(std::memory_order_relaxed) == nullptr) return buffer.hold;
  py::object begin;
  {
    const std::lock_guard lock(g_latch);
    begin = py::reinterpret_borrow<py::object>(g_begin.load());
  }
  if (!begin) return buffer.hold;
  py::object changed = begin(buffer.length_bytes);
  std::vector<MutableBytes> pieces = buffer.pieces;
  if (pieces.empty()) pieces.emplace_back(buffer.data, buffer.length_bytes);
  return std::make_shared<WatchedHold>(buffer.hold, std::move(pieces), changed.release().ptr());
}

}  // namespace rrpc::bind
