#include "bind/plan/python_nodes.h"

#include <cstring>
#include <utility>

#include "bind/plan/python.h"
#include "bind/plan/wire.h"

namespace rrpc::bind::plan {
namespace {

bool append(PyObject* bytes, Packed& packed, bool& marked) {
  if (!PyBytes_CheckExact(bytes) || PyBytes_GET_SIZE(bytes) == 0) return false;
  std::string_view data(PyBytes_AS_STRING(bytes), static_cast<size_t>(PyBytes_GET_SIZE(bytes)));
  if (data.front() == kMarked) {
    marked = true;
    data.remove_prefix(1);
  }
  packed.payload.append(as_bytes(data));
  return true;
}

}  // namespace

bool pack_in_python(const Node& node, PyObject* value, Packed& packed, bool& marked) {
  const auto before = py::reinterpret_steal<py::object>(PyLong_FromSize_t(packed.buffers.size()));
  if (!before) throw py::error_already_set();
  const auto answer = py::reinterpret_steal<py::object>(
      call_python([&] { return PyObject_CallFunctionObjArgs(node.pack.ptr(), value, before.ptr(), nullptr); }));
  if (!answer) {
    leave_to_python();
    return false;
  }
  if (!PyTuple_CheckExact(answer.ptr())) return append(answer.ptr(), packed, marked);
  if (!append(PyTuple_GET_ITEM(answer.ptr(), 0), packed, marked)) return false;
  for (const py::handle buffer : py::handle(PyTuple_GET_ITEM(answer.ptr(), 1)))
    packed.buffers.push_back(py::reinterpret_borrow<py::object>(buffer));
  return true;
}

py::object read_in_python(const Node& node, std::string_view bytes, bool marked, py::handle blocks,
                          size_t& blocks_taken) {
  const size_t prefix = marked ? 1 : 0;
  const auto payload = py::reinterpret_steal<py::object>(
      PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes.size() + prefix)));
  const auto before = py::reinterpret_steal<py::object>(PyLong_FromSize_t(blocks_taken));
  if (!payload || !before) throw py::error_already_set();
  char* const data = PyBytes_AS_STRING(payload.ptr());
  if (marked) data[0] = kMarked;
  std::memcpy(data + prefix, bytes.data(), bytes.size());
  const auto answer = py::reinterpret_steal<py::object>(call_python([&] {
    return PyObject_CallFunctionObjArgs(node.read.ptr(), payload.ptr(), blocks.ptr(), before.ptr(), nullptr);
  }));
  if (!answer) leave_refusal_to_python();
  if (!answer || !PyTuple_CheckExact(answer.ptr())) return {};
  blocks_taken = PyLong_AsSize_t(PyTuple_GET_ITEM(answer.ptr(), 1));
  return py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(answer.ptr(), 0));
}

}  // namespace rrpc::bind::plan
