// What the codec asks of a peer's bytes before Python builds anything of them.
#include <pybind11/pybind11.h>

#include <vector>

#include "base/hash_probes.h"
#include "base/msgpack_scan.h"
#include "bind/register.h"

namespace py = pybind11;

namespace rrpc::bind {
namespace {

// Of a contiguous buffer, by the C API: pybind11's buffer_info costs more than the scan of a short message.
bool scan_payload(const py::buffer& payload) {
  Py_buffer view;
  if (PyObject_GetBuffer(payload.ptr(), &view, PyBUF_SIMPLE) != 0) throw py::error_already_set();
  const Result<MsgpackFacts> facts =
      scan_msgpack({static_cast<const std::byte*>(view.buf), static_cast<size_t>(view.len)});
  PyBuffer_Release(&view);
  if (!facts.ok()) throw py::value_error(facts.status().message());
  return facts->keys_to_check;
}

bool keys_collide(const py::list& keys) {
  std::vector<int64_t> hashes;
  hashes.reserve(keys.size());
  for (const py::handle key : keys) hashes.push_back(py::hash(key));
  return hashes_collide(hashes);
}

}  // namespace

void register_codec(py::module_& module) {
  module.attr("KEYS_UNCHECKED") = kKeysUnchecked;
  module.attr("OBJECTS_ALWAYS") = kObjectsAlways;
  module.def("scan_payload", &scan_payload, py::arg("payload"));
  module.def("keys_collide", &keys_collide, py::arg("keys"));
}

}  // namespace rrpc::bind
