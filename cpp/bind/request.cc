#include "bind/request.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "bind/convert.h"

namespace rrpc::bind {
namespace {

constexpr int kResumed = 8;
constexpr std::string_view kTrace = "rrpc-trace";  // TRACE in rrpc/metadata.py

// The fields of a request, in the order in which make_request() takes them.
PyStructSequence_Field g_request_fields[] = {
    {"handle", "Names the call until it is answered."},
    {"method", "The method's name, as bytes."},
    {"payload", "The arguments, packed."},
    {"buffers", "The blocks of the large arguments, or None."},
    {"ns_left", "Nanoseconds until the deadline, or -1."},
    {"metadata", "Packed; empty if there is none."},
    {"traced", "Whether the metadata asks for a trace."},
    {"kind", "0, or the sum of 2 (the client streams), 4 (the server does), 8 (the call was parked and goes on)."},
    {nullptr, nullptr}};
PyStructSequence_Desc g_request_desc = {"rrpc._core.Request", "A call that a server is to handle.", g_request_fields,
                                        8};
PyTypeObject* g_request_type = nullptr;  // set once, by register_request()

// A named tuple of CPython's own kind: it is made once a call, and its fields are read faster than a class's.
py::object make_request(uint64_t handle, py::object method, py::object payload, py::object buffers, int64_t ns_left,
                        py::object metadata, bool traced, int kind) {
  PyObject* request = PyStructSequence_New(g_request_type);
  if (request == nullptr) throw py::error_already_set();
  auto owner = py::reinterpret_steal<py::object>(request);
  py::object fields[] = {py::int_(handle),  std::move(method),   std::move(payload), std::move(buffers),
                         py::int_(ns_left), std::move(metadata), py::bool_(traced),  py::int_(kind)};
  Py_ssize_t place = 0;
  for (py::object& field : fields) PyStructSequence_SET_ITEM(request, place++, field.release().ptr());
  return owner;
}

}  // namespace

bool is_traced(const rpc::ServerCall& call) { return as_text(call.metadata()).find(kTrace) != std::string_view::npos; }

py::object request_of(driver::Work& work) { return request_of(work, wrap_blocks(work.call->blocks())); }

py::object request_of(driver::Work& work, py::object blocks) {
  rpc::ServerCall& call = *work.call;
  const TimeNs deadline = call.deadline();
  const int64_t left_ns = deadline == kNever ? -1 : std::max<TimeNs>(deadline - work.taken_at, 0);
  if (work.resumed)
    return make_request(work.handle, bytes_of(call.method()), py::bytes(), py::none(), left_ns, py::bytes(), false,
                        call.kind() | kResumed);
  return make_request(work.handle, bytes_of(call.method()), bytes_of(as_text(call.payload())), std::move(blocks),
                      left_ns, bytes_of(as_text(call.metadata())), is_traced(call), call.kind());
}

void register_request(py::module_& module) {
  g_request_type = PyStructSequence_NewType(&g_request_desc);
  if (g_request_type == nullptr) throw py::error_already_set();
  module.attr("Request") = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(g_request_type));
}

}  // namespace rrpc::bind
