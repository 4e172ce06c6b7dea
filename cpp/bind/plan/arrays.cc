#include "bind/plan/arrays.h"

#include <pybind11/numpy.h>

#include <array>
#include <atomic>
#include <cstring>
#include <utility>

#include "bind/plan/python.h"

namespace rrpc::bind::plan {
namespace {

constexpr size_t kDtypesMax = 32;  // that a node remembers
constexpr size_t kRankMax = 16;

const py::detail::npy_api& numpy() { return py::detail::npy_api::get(); }

const Dtype* known(const Dtypes& dtypes, PyObject* descr) {
  return dtypes.find([descr](const Dtype& dtype) { return dtype.descr == descr; });
}

// Asks the node's check, in Python, once for each dtype: (dtype, its name on the wire, bytes of an item), or None.
const Dtype* adopt(const Node& node, py::handle asked) {
  PyObject* const answer = call_python([&] { return PyObject_CallOneArg(node.type.ptr(), asked.ptr()); });
  if (answer == nullptr) {
    leave_to_python();
    return nullptr;
  }
  const auto found = py::reinterpret_steal<py::object>(answer);
  if (found.is_none()) return nullptr;
  const auto parts = found.cast<py::tuple>();
  return node.dtypes->add(parts[0], parts[1].cast<std::string>(), parts[2].cast<int64_t>());
}

const Dtype* of_descr(const Node& node, PyObject* descr) {
  const Dtype* const dtype = known(*node.dtypes, descr);
  return dtype != nullptr ? dtype : adopt(node, descr);
}

const Dtype* of_wire(const Node& node, std::string_view wire) {
  const Dtype* const dtype = node.dtypes->find([wire](const Dtype& known) { return known.wire == wire; });
  return dtype != nullptr ? dtype : adopt(node, py::bytes(wire.data(), wire.size()));
}

// What follows the head's length: u8 flags, u8 rank, rank x u64, the dtype.
struct Head {
  const Dtype* dtype = nullptr;
  std::array<Py_intptr_t, kRankMax> shape{};
  int rank = 0;
  size_t nbytes = 0;
  size_t length = 0;  // of the head itself
};

bool parse_head(const Node& node, std::string_view data, Head& head) {
  if (data.size() < 4) return false;
  uint16_t rest = 0;
  std::memcpy(&rest, data.data(), sizeof rest);
  const auto flags = static_cast<uint8_t>(data[2]);
  const auto rank = static_cast<uint8_t>(data[3]);
  head.length = 2 + size_t{rest};
  const size_t dtype_at = 4 + 8 * size_t{rank};
  if (flags != 0 || rank > kRankMax || head.length > data.size() || dtype_at > head.length) return false;
  head.dtype = of_wire(node, data.substr(dtype_at, head.length - dtype_at));
  if (head.dtype == nullptr) return false;
  head.rank = rank;
  head.nbytes = static_cast<size_t>(head.dtype->item_bytes);
  for (size_t i = 0; i < rank; ++i) {
    uint64_t length = 0;
    std::memcpy(&length, data.data() + 4 + 8 * i, sizeof length);
    if (length > INT64_MAX || __builtin_mul_overflow(head.nbytes, length, &head.nbytes)) return false;
    head.shape[i] = static_cast<Py_intptr_t>(length);
  }
  return true;
}

bool has_shape(const Node& node, const Py_intptr_t* shape, size_t rank, Sizes& sizes) {
  if (!node.shaped) return true;
  if (rank != node.shape.size()) return false;
  for (size_t i = 0; i < rank; ++i) {
    const int64_t wanted = node.shape[i];
    if (wanted >= 0 && shape[i] != wanted) return false;
    if (wanted < kAnySize && !sizes.agrees(static_cast<size_t>(-2 - wanted), shape[i])) return false;
  }
  return true;
}

py::object new_array(const Head& head, void* memory, bool writable) {
  Py_INCREF(head.dtype->descr);  // taken by the array
  // Without memory the flags mean the order.
  const int flags = memory == nullptr || !writable ? 0 : py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
  PyObject* const array = numpy().PyArray_NewFromDescr_(numpy().PyArray_Type_, head.dtype->descr, head.rank,
                                                        head.shape.data(), nullptr, memory, flags, nullptr);
  if (array == nullptr) leave_to_python();
  return py::reinterpret_steal<py::object>(array);
}

}  // namespace

const Dtype* Dtypes::add(py::handle descr, std::string wire, int64_t item_bytes) {
  const std::lock_guard lock(adding_);
  if (const Dtype* const dtype = known(*this, descr.ptr())) return dtype;  // under another name, or by another thread
  if (all_.size() >= kDtypesMax) return nullptr;
  all_.push_back({descr.inc_ref().ptr(), std::move(wire), item_bytes, last_.load(std::memory_order_relaxed)});
  last_.store(&all_.back(), std::memory_order_release);
  return &all_.back();
}

#ifdef Py_GIL_DISABLED
namespace {

// Moves the references that this thread counts by itself to those that all threads count, and gives the object up.
void share(PyObject* object) {
  if (_Py_IsImmortal(object) || !_Py_IsOwnedByCurrentThread(object)) return;
  const std::atomic_ref own(object->ob_ref_local);
  const std::atomic_ref shared(object->ob_ref_shared);
  shared.fetch_add(Py_ssize_t{own.load(std::memory_order_relaxed)} << _Py_REF_SHARED_SHIFT, std::memory_order_relaxed);
  own.store(1, std::memory_order_relaxed);
  Py_DECREF(object);  // the last of its own, so that CPython takes the owner off
}

}  // namespace

void share_references(PyObject* object) {
  while (object != nullptr) {
    share(object);
    const bool is_array = Py_TYPE(object) == numpy().PyArray_Type_;
    object = is_array ? py::detail::array_proxy(object)->base : nullptr;
  }
}
#else
void share_references(PyObject*) {}
#endif

bool view_array(const Node& node, PyObject* value, ArrayView& view, Sizes& sizes) {
  if (Py_TYPE(value) != numpy().PyArray_Type_) return false;
  const auto* const array = py::detail::array_proxy(value);
  const Dtype* const dtype = of_descr(node, array->descr);
  if (dtype == nullptr || dtype->descr != array->descr) return false;  // Python ran, and may have changed it
  const auto rank = static_cast<size_t>(array->nd);
  if ((array->flags & py::detail::npy_api::NPY_ARRAY_C_CONTIGUOUS_) == 0 || rank > kRankMax) return false;
  if (!has_shape(node, array->dimensions, rank, sizes)) return false;
  const size_t rest = 2 + 8 * rank + dtype->wire.size();
  view.head.resize(2 + rest);
  char* const head = view.head.data();
  const auto length = static_cast<uint16_t>(rest);
  std::memcpy(head, &length, sizeof length);
  head[2] = 0;
  head[3] = static_cast<char>(rank);
  view.nbytes = static_cast<size_t>(dtype->item_bytes);
  for (size_t i = 0; i < rank; ++i) {
    const auto size = static_cast<uint64_t>(array->dimensions[i]);
    std::memcpy(head + 4 + 8 * i, &size, sizeof size);
    view.nbytes *= size;
  }
  std::memcpy(head + 4 + 8 * rank, dtype->wire.data(), dtype->wire.size());
  view.bytes = array->data;
  return true;
}

py::object inline_array(const Node& node, std::string_view data, Sizes& sizes) {
  Head head;
  if (!parse_head(node, data, head) || data.size() - head.length != head.nbytes) return {};
  if (!has_shape(node, head.shape.data(), static_cast<size_t>(head.rank), sizes)) return {};
  py::object array = new_array(head, nullptr, true);
  if (!array) return array;
  auto* const made = py::detail::array_proxy(array.ptr());
  if (head.nbytes != 0) std::memcpy(made->data, data.data() + head.length, head.nbytes);
  if (node.lend) made->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
  return array;
}

py::object bulk_array(const Node& node, std::string_view data, py::handle block, Sizes& sizes) {
  Head head;
  if (!parse_head(node, data, head) || data.size() != head.length) return {};
  if (!has_shape(node, head.shape.data(), static_cast<size_t>(head.rank), sizes)) return {};
  Py_buffer memory;
  // What isn't borrowed is the receiver's own: a block that is lent has no writable buffer, and Python copies it.
  const bool borrowed = static_cast<bool>(node.lend);
  if (PyObject_GetBuffer(block.ptr(), &memory, borrowed ? PyBUF_SIMPLE : PyBUF_WRITABLE) != 0) {
    leave_to_python();
    return {};
  }
  py::object array;
  if (static_cast<size_t>(memory.len) == head.nbytes) array = new_array(head, memory.buf, !borrowed);
  PyBuffer_Release(&memory);
  if (array && numpy().PyArray_SetBaseObject_(array.ptr(), block.inc_ref().ptr()) != 0) {
    leave_to_python();
    return {};
  }
  share_references(array.ptr());
  return array;
}

}  // namespace rrpc::bind::plan
