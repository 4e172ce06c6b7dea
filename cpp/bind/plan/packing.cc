#include <msgpack/pack.hpp>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "base/msgpack_scan.h"
#include "bind/plan/arrays.h"
#include "bind/plan/node.h"
#include "bind/plan/python.h"
#include "bind/plan/python_nodes.h"
#include "bind/plan/threads.h"
#include "bind/plan/wire.h"

namespace rrpc::bind::plan {
namespace {

class Writer {
 public:
  explicit Writer(Payload& out) : out_(out) {}
  void write(const char* data, size_t count) { out_.append(as_bytes(std::string_view(data, count))); }

 private:
  Payload& out_;
};

constexpr int kDepthMax = 100;  // of Any; Python tells where values are nested too deep

bool is_simple_key(PyObject* key) {
  return PyUnicode_CheckExact(key) || PyLong_CheckExact(key) || PyBytes_CheckExact(key) || PyFloat_CheckExact(key) ||
         PyBool_Check(key) || key == Py_None;
}

class Packing {
 public:
  Packing(Packed& packed, Sizes& sizes) : packed_(packed), sizes_(sizes), writer_(packed.payload), pack_(writer_) {}

  bool marked() const { return marked_; }
  void begin_list(size_t count) { pack_.pack_array(static_cast<uint32_t>(count)); }

  bool value(const Node& node, PyObject* value) {
    if (value == Py_None && node.optional) return nil();
    switch (node.kind) {
      case Kind::kNone:
        return value == Py_None && nil();
      case Kind::kBool:
        return PyBool_Check(value) && boolean(value);
      case Kind::kInt:
        return PyLong_CheckExact(value) && integer(node, value);
      case Kind::kFloat:
      case Kind::kFloat32:
        return PyFloat_CheckExact(value) && number(node, PyFloat_AS_DOUBLE(value));
      case Kind::kStr:
        return PyUnicode_CheckExact(value) && text(value);
      case Kind::kBytes:
        return PyBytes_CheckExact(value) && bytes(value);
      case Kind::kList:
        return PyList_CheckExact(value) && list(node, value);
      case Kind::kDict:
        return PyDict_CheckExact(value) && dict(node, value);
      case Kind::kTuple:
        return PyTuple_CheckExact(value) && tuple(node, value);
      case Kind::kTupleOf:
        return PyTuple_CheckExact(value) && tuple_of(node.inner[0], value);
      case Kind::kSet:
        return PySet_CheckExact(value) && set(node, value);
      case Kind::kFrozenSet:
        return PyFrozenSet_CheckExact(value) && set(node, value);
      case Kind::kNamedTuple:
        return is_a(node, value) && tuple(node, value);
      case Kind::kRecord:
        return is_a(node, value) && record(node, value);
      case Kind::kArray:
        return array(node, value);
      case Kind::kEnum:
        return is_a(node, value) && member(node, value);
      case Kind::kLiteral:
        return literal(node, value) && any(node, value);
      case Kind::kComplex:
        return PyComplex_CheckExact(value) && complex(value);
      case Kind::kText:
        return is_a(node, value) && text_of(node, value);
      case Kind::kUnion:
        return alternative(node, value);
      case Kind::kAny:
        return any(node, value);
      case Kind::kPython:
        return pack_in_python(node, value, packed_, marked_);
    }
    return false;
  }

 private:
  static bool is_a(const Node& node, PyObject* value) {
    return Py_TYPE(value) == reinterpret_cast<PyTypeObject*>(node.type.ptr());
  }

  // By the value's own type, as the codec in Python packs it; so for literals, whose values are known.
  bool any(const Node& node, PyObject* value) {
    if (value == Py_None) return nil();
    if (PyBool_Check(value)) return boolean(value);
    if (PyLong_CheckExact(value)) return integer(node, value);
    if (PyFloat_CheckExact(value)) return number(node, PyFloat_AS_DOUBLE(value));
    if (PyUnicode_CheckExact(value)) return text(value);
    if (PyBytes_CheckExact(value)) return bytes(value);
    if (PyComplex_CheckExact(value)) return complex(value);
    if (++depth_ > kDepthMax) return false;  // which may contain itself
    const bool packed = container(node, value);
    --depth_;
    return packed;
  }
  bool container(const Node& node, PyObject* value) {
    if (PyList_CheckExact(value)) return list(node, value);
    if (PyDict_CheckExact(value)) return dict(node, value);
    if (PyTuple_CheckExact(value)) return tuple_of(node, value);
    return array(node, value);
  }

  bool member(const Node& node, PyObject* value) {
    const auto plain = py::reinterpret_steal<py::object>(PyObject_GetAttr(value, node.pack.ptr()));
    if (!plain) {
      leave_to_python();
      return false;
    }
    return (PyLong_CheckExact(plain.ptr()) || PyUnicode_CheckExact(plain.ptr())) && any(node, plain.ptr());
  }

  static bool literal(const Node& node, PyObject* value) {
    if (!PyUnicode_CheckExact(value) && !PyLong_CheckExact(value) && !PyBool_Check(value)) return false;
    const py::object known = value_in(node.members.ptr(), value);
    return known && Py_TYPE(known.ptr()) == Py_TYPE(value);
  }

  // The first that takes it: the bytes are those of the value, whichever that is.
  bool alternative(const Node& node, PyObject* value) {
    const size_t length = packed_.payload.size(), buffers = packed_.buffers.size();
    for (const Node& inner : node.inner) {
      if (this->value(inner, value)) return true;
      packed_.payload.shrink(length);
      packed_.buffers.resize(buffers);
    }
    return false;
  }

  bool nil() {
    pack_.pack_nil();
    return true;
  }

  bool boolean(PyObject* value) {
    value == Py_True ? pack_.pack_true() : pack_.pack_false();
    return true;
  }

  bool integer(const Node& node, PyObject* value) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow == 0) {
      if (number < node.least || (number > 0 && static_cast<uint64_t>(number) > node.most)) return false;
      if (node.slot >= 0 && !sizes_.agrees(static_cast<size_t>(node.slot), number)) return false;
      pack_.pack_long_long(number);
      return true;
    }
    if (overflow < 0 || node.slot >= 0) return false;
    const unsigned long long large = PyLong_AsUnsignedLongLong(value);
    if (PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      return false;
    }
    if (large > node.most) return false;
    pack_.pack_unsigned_long_long(large);
    return true;
  }

  bool number(const Node& node, double value) {
    if (node.kind == Kind::kFloat32 && std::isfinite(value) && std::abs(value) >= kFloat32Overflows) return false;
    // Not by pack_double(), which makes integers of whole numbers.
    std::array<char, 1 + sizeof value> out{'\xcb'};
    const uint64_t bits = __builtin_bswap64(std::bit_cast<uint64_t>(value));
    std::memcpy(out.data() + 1, &bits, sizeof bits);
    writer_.write(out.data(), out.size());
    return true;
  }

  bool text(PyObject* value) {
    Py_ssize_t length = 0;
    const char* const utf8 = PyUnicode_AsUTF8AndSize(value, &length);
    if (utf8 == nullptr) {
      PyErr_Clear();
      return false;
    }
    pack_.pack_str(static_cast<uint32_t>(length));
    pack_.pack_str_body(utf8, static_cast<uint32_t>(length));
    return static_cast<uint64_t>(length) <= UINT32_MAX;
  }

  bool bytes(PyObject* value) {
    const auto length = static_cast<size_t>(PyBytes_GET_SIZE(value));
    if (length >= kBulkBytes) return false;
    pack_.pack_bin(static_cast<uint32_t>(length));
    pack_.pack_bin_body(PyBytes_AS_STRING(value), static_cast<uint32_t>(length));
    return true;
  }

  bool complex(PyObject* value) {
    const Py_complex number = PyComplex_AsCComplex(value);
    const std::array<double, 2> parts{number.real, number.imag};
    pack_.pack_ext(sizeof parts, kComplexExt);
    writer_.write(reinterpret_cast<const char*>(parts.data()), sizeof parts);
    return true;
  }

  bool text_of(const Node& node, PyObject* value) {
    const auto text =
        py::reinterpret_steal<py::object>(call_python([&] { return PyObject_CallOneArg(node.pack.ptr(), value); }));
    Py_ssize_t length = 0;
    const char* const utf8 = text ? PyUnicode_AsUTF8AndSize(text.ptr(), &length) : nullptr;
    if (utf8 == nullptr) {
      leave_to_python();
      return false;
    }
    pack_.pack_ext(static_cast<size_t>(length), node.code);
    writer_.write(utf8, static_cast<size_t>(length));
    return true;
  }

  // An item may run Python (an array's check, once for each dtype; a type that Python packs), which may change what
  // contains it. So may another thread.
  bool list(const Node& node, PyObject* value) {
    const Py_ssize_t count = PyList_GET_SIZE(value);
    if (static_cast<uint64_t>(count) > UINT32_MAX) return false;
    begin_list(static_cast<size_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
      const py::object item = item_of(value, i);
      if (!item || !this->value(node.kind == Kind::kAny ? node : node.inner[0], item.ptr())) return false;
    }
    return PyList_GET_SIZE(value) == count;
  }

  bool dict(const Node& node, PyObject* value) {
    const Section section(value);
    const Py_ssize_t count = PyDict_GET_SIZE(value);
    if (static_cast<uint64_t>(count) > UINT32_MAX) return false;
    pack_.pack_map(static_cast<uint32_t>(count));
    PyObject *key = nullptr, *item = nullptr;
    Py_ssize_t at = 0, packed = 0;
    for (; PyDict_Next(value, &at, &key, &item) != 0; ++packed) {
      const auto held_key = py::reinterpret_borrow<py::object>(key), held = py::reinterpret_borrow<py::object>(item);
      if (node.kind == Kind::kAny && !is_simple_key(key)) return false;
      const bool known = node.kind != Kind::kAny;
      if (!this->value(known ? node.inner[0] : node, key) || !this->value(known ? node.inner[1] : node, item))
        return false;
      if (PyDict_GET_SIZE(value) != count) return false;
    }
    return packed == count;
  }

  bool tuple(const Node& node, PyObject* value) {
    const auto count = static_cast<size_t>(PyTuple_GET_SIZE(value));
    if (count != node.inner.size()) return false;
    begin_list(count + 1);
    mark(kTupleMark, {});
    for (size_t i = 0; i < count; ++i)
      if (!this->value(node.inner[i], PyTuple_GET_ITEM(value, static_cast<Py_ssize_t>(i)))) return false;
    return true;
  }

  bool tuple_of(const Node& item, PyObject* value) {
    const Py_ssize_t count = PyTuple_GET_SIZE(value);
    if (static_cast<uint64_t>(count) >= UINT32_MAX) return false;
    begin_list(static_cast<size_t>(count) + 1);
    mark(kTupleMark, {});
    for (Py_ssize_t i = 0; i < count; ++i)
      if (!this->value(item, PyTuple_GET_ITEM(value, i))) return false;
    return true;
  }

  bool set(const Node& node, PyObject* value) {
    const auto items = py::reinterpret_steal<py::object>(PyObject_GetIter(value));
    if (!items) {
      leave_to_python();
      return false;
    }
    const Py_ssize_t count = PySet_GET_SIZE(value);
    begin_list(static_cast<size_t>(count) + 1);
    mark(mark_of(node.kind), {});
    Py_ssize_t packed = 0;
    for (; const auto item = py::reinterpret_steal<py::object>(PyIter_Next(items.ptr())); ++packed)
      if (!this->value(node.inner[0], item.ptr())) return false;
    if (PyErr_Occurred() == nullptr) return packed == count;  // else the set has changed meanwhile
    leave_to_python();
    return false;
  }

  bool record(const Node& node, PyObject* value) {
    begin_list(2);
    mark(kRecordMark, node.mark);
    pack_.pack_map(static_cast<uint32_t>(node.inner.size()));
    for (size_t i = 0; i < node.inner.size(); ++i) {
      PyObject* const name = PyTuple_GET_ITEM(node.names.ptr(), static_cast<Py_ssize_t>(i));
      const auto member = py::reinterpret_steal<py::object>(call_python([&] { return PyObject_GetAttr(value, name); }));
      if (!member) {
        leave_to_python();
        return false;
      }
      if (!text(name) || !this->value(node.inner[i], member.ptr())) return false;
    }
    return true;
  }

  void mark(int8_t code, std::string_view name) {
    marked_ = true;
    pack_.pack_ext(name.size(), code);
    pack_.pack_ext_body(name.data(), static_cast<uint32_t>(name.size()));
  }

  // The array itself, or the mark that lends it. Null is an exception.
  static py::object buffer_of(const Node& node, PyObject* array) {
    if (!node.lend) return py::reinterpret_borrow<py::object>(array);
    return py::reinterpret_steal<py::object>(call_python([&] { return PyObject_CallOneArg(node.lend.ptr(), array); }));
  }

  bool array(const Node& node, PyObject* value) {
    ArrayView view;
    if (!view_array(node, value, view, sizes_)) return false;
    if (view.nbytes < kBulkBytes) {
      pack_.pack_ext(view.head.size() + view.nbytes, kArrayExt);
      writer_.write(view.head.data(), view.head.size());
      writer_.write(view.bytes, view.nbytes);
      return true;
    }
    const auto index = static_cast<uint32_t>(packed_.buffers.size());
    packed_.buffers.push_back(buffer_of(node, value));
    if (!packed_.buffers.back()) {
      leave_to_python();
      return false;
    }
    pack_.pack_ext(sizeof index + view.head.size(), kBulkArrayExt);
    writer_.write(reinterpret_cast<const char*>(&index), sizeof index);
    writer_.write(view.head.data(), view.head.size());
    return true;
  }

  Packed& packed_;
  Sizes& sizes_;
  Writer writer_;
  msgpack::packer<Writer> pack_;
  bool marked_ = false;
  int depth_ = 0;  // of Any
};

// Whether the type alone shows that the value is left to Python: what it may be converted to is rarely another one.
bool is_left(const Node& node, PyObject* value) {
  if (value == Py_None && node.optional) return false;
  switch (node.kind) {
    case Kind::kInt:
      return !PyLong_CheckExact(value);
    case Kind::kFloat:
    case Kind::kFloat32:
      return !PyFloat_CheckExact(value);
    case Kind::kStr:
      return !PyUnicode_CheckExact(value);
    case Kind::kList:
      return !PyList_CheckExact(value);
    default:
      return false;
  }
}

// Looks for that before any node of Python's runs, whose work would be done again.
bool are_left(const std::vector<Node>& nodes, PyObject* const* values) {
  bool hands_over = false, left = false;
  for (size_t i = 0; i < nodes.size(); ++i) {
    hands_over = hands_over || nodes[i].hands_over;
    left = left || is_left(nodes[i], values[i]);
  }
  return hands_over && left;
}

// What receivers refuse is left to Python, which says so.
bool finish(const Packing& packing, Payload& payload) {
  if (packing.marked()) payload.prepend(static_cast<std::byte>(kMarked));
  if (payload.size() <= kObjectsAlways) return true;
  return scan_msgpack(payload.view().subspan(packing.marked() ? 1 : 0)).ok();
}

}  // namespace

bool pack_list(const std::vector<Node>& nodes, PyObject* const* values, Packed& packed, Sizes& sizes) {
  if (are_left(nodes, values)) return false;
  Packing packing(packed, sizes);
  packing.begin_list(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i)
    if (!packing.value(nodes[i], values[i])) return false;
  return finish(packing, packed.payload);
}

bool pack_value(const Node& node, PyObject* value, Packed& packed, Sizes& sizes) {
  Packing packing(packed, sizes);
  return packing.value(node, value) && finish(packing, packed.payload);
}

}  // namespace rrpc::bind::plan
