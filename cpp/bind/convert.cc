#include "bind/convert.h"

#include <pybind11/stl.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <utility>

#include "base/limits.h"
#include "bind/deferred.h"
#include "bind/owners.h"
#include "bind/plan/arrays.h"
#include "bind/policy.h"
#include "bind/watched_buffer.h"

namespace rrpc::bind {
namespace {

PyObject* g_error_factory = nullptr;

class PythonHold : public endpoint::Hold {
 public:
  explicit PythonHold(const Py_buffer& view) : view_(view) {}
  ~PythonHold() override { defer_release(view_); }
  PyObject* exporter() const { return view_.obj; }

 private:
  Py_buffer view_;
};

constexpr size_t kCachedBytesMin = 64 << 10;  // smaller registrations aren't worth a weak reference
constexpr size_t kPiecesMax = 30;             // the codec packs what has more pieces than its own lower limit

// The contiguous pieces of a strided buffer with items, in C order.
std::vector<MutableBytes> pieces_of(const Py_buffer& view) {
  Py_ssize_t piece_bytes = view.itemsize;
  int outer = view.ndim;  // dimensions left outside a piece
  while (outer > 0 && (view.shape[outer - 1] == 1 || view.strides[outer - 1] == piece_bytes))
    piece_bytes *= view.shape[--outer];
  std::vector<Py_ssize_t> offsets{0};
  for (int dimension = 0; dimension < outer; ++dimension) {
    std::vector<Py_ssize_t> finer;
    for (const Py_ssize_t offset : offsets)
      for (Py_ssize_t i = 0; i < view.shape[dimension]; ++i) finer.push_back(offset + i * view.strides[dimension]);
    offsets = std::move(finer);
    if (offsets.size() > kPiecesMax) throw py::buffer_error("the buffer is not contiguous, and in too many pieces");
  }
  std::vector<MutableBytes> pieces;
  for (const Py_ssize_t offset : offsets)
    pieces.emplace_back(static_cast<std::byte*>(view.buf) + offset, static_cast<size_t>(piece_bytes));
  return pieces;
}

TimeNs seconds_to_ns(double seconds, const char* name) {
  if (std::isnan(seconds) || seconds < 0)
    raise_status(
        invalid_argument(std::string(name) + " must be a number of seconds from 0 up, not " + std::to_string(seconds)));
  return seconds >= 9e9 ? kNever : static_cast<TimeNs>(seconds * 1e9);
}

}  // namespace

void set_error_factory(py::object factory) { g_error_factory = factory.release().ptr(); }

py::object error_of(const Status& status, const ErrorFacts& facts) {
  if (g_error_factory == nullptr) throw std::runtime_error(status.to_string());
  return py::handle(g_error_factory)(static_cast<int>(status.code()), text_of(status.message()),
                                     status.is_protocol_error(), bytes_of(facts.details), bytes_of(facts.metadata),
                                     facts.not_executed);
}

void raise_status(const Status& status, const ErrorFacts& facts) {
  const py::object error = error_of(status, facts);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw py::error_already_set();
}

TimeNs deadline_from(py::handle timeout) {
  if (timeout.is_none()) return kNever;
  const double seconds = PyFloat_AsDouble(timeout.ptr());
  if (seconds == -1.0 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return deadline_after(now_ns(), seconds_to_ns(seconds, "timeout"));
}

static constexpr std::pair<const char*, std::string provider::TlsOptions::*> kTlsFiles[] = {
    {"tls_cert", &provider::TlsOptions::certificate},
    {"tls_key", &provider::TlsOptions::key},
    {"tls_ca", &provider::TlsOptions::authorities},
    {"tls_crl", &provider::TlsOptions::revoked},
    {"tls_peer_name", &provider::TlsOptions::peer_name}};

py::dict default_options() {
  const driver::Options options;
  const rpc::SessionOptions& session = options.session;
  py::dict out;
  out["slots"] = session.geometry.slots;
  out["slot_bytes"] = session.geometry.slot_bytes;
  out["read_depth"] = session.geometry.read_depth;
  out["calls_in_flight_max"] = session.calls_in_flight_max;
  out["exposed_bytes_max"] = py::none();
  out["landing_bytes_max"] = py::none();
  out["queued_bytes_max"] = py::none();
  out["lent_bytes_max"] = py::none();
  out["message_bytes_max"] = session.message_bytes_max;
  out["buffers_max"] = session.buffers_max;
  out["stream_window_items"] = session.stream_window_items;
  out["stream_window_bytes"] = session.stream_window_bytes;
  out["metadata_bytes_max"] = session.metadata_bytes_max;
  out["poll"] = "adaptive";
  out["spin_us"] = static_cast<double>(options.spin) / kMicrosecond;
  out["keepalive_interval"] = static_cast<double>(session.keepalive_interval) / kSecond;
  out["keepalive_timeout"] = static_cast<double>(session.keepalive_timeout) / kSecond;
  out["lease_timeout"] = static_cast<double>(session.lease_timeout) / kSecond;
  out["fetch_timeout"] = static_cast<double>(session.fetch_timeout) / kSecond;
  out["connections_max"] = options.connections_max;
  out["max_concurrency"] = py::none();
  out["max_queue"] = py::none();
  out["rate_limit"] = py::none();
  out["rate_burst"] = py::none();
  out["stream_handlers_max"] = options.stream_handlers_max;
  out["handshakes_max"] = options.handshakes_max;
  out["max_connection_age"] = py::none();
  out["max_connection_age_grace"] = py::none();
  out["any_user"] = options.any_user;
  out["allow_clients"] = py::none();
  out["transports"] = py::none();
  out["rdma_security"] = std::string(driver::protection_name(options.rdma_security));
  out["tls"] = options.tls;
  for (const auto& [name, member] : kTlsFiles) out[name] = py::none();
  out["shared_receive_slots"] = options.shared_receive_slots;
  out["pollers"] = options.pollers;
  out["numa_node"] = py::none();
  return out;
}

static driver::Protection protection_from(py::handle value) {
  const auto parsed = driver::parse_protection(value.cast<std::string>(), "the option rdma_security");
  raise_if_error(parsed.status());
  return *parsed;
}

static bool set_tls_file(driver::Options& options, const std::string& name, py::handle value) {
  for (const auto& [known, member] : kTlsFiles) {
    if (name != known) continue;
    if (value.is_none()) return true;
    const auto path = py::reinterpret_steal<py::object>(PyOS_FSPath(value.ptr()));
    if (!path) {
      PyErr_Clear();
      throw py::cast_error();
    }
    options.files.*member = path.cast<std::string>();
    return true;
  }
  return false;
}

static driver::PollMode poll_mode_from(const std::string& name) {
  if (name == "adaptive") return driver::PollMode::kAdaptive;
  if (name == "busy") return driver::PollMode::kBusy;
  if (name == "event") return driver::PollMode::kEvent;
  raise_status(invalid_argument("poll must be 'adaptive', 'busy' or 'event', not '" + name + "'"));
}

static std::vector<std::string> transports_from(py::handle value) {
  static const std::string what = "the option transports";
  Result<std::vector<std::string>> transports = invalid_argument("");
  if (value.is_none())
    transports = driver::default_transports();
  else if (py::isinstance<py::str>(value))
    transports = driver::parse_transports(value.cast<std::string>(), what);
  else
    transports = value.cast<std::vector<std::string>>();
  raise_if_error(transports.status());
  raise_if_error(driver::validate_transports(*transports, what));
  return *transports;
}

static uint32_t metadata_limit_from(uint32_t value) {
  if (value <= UINT16_MAX) return value;
  raise_status(invalid_argument("metadata_bytes_max can be at most 65535, not " + std::to_string(value)));
}

static uint64_t window_from(py::handle value, const std::string& name, uint64_t most) {
  const auto window = value.cast<uint64_t>();
  if (window >= 1 && window <= most) return window;
  raise_status(
      invalid_argument(name + " can be from 1 to " + std::to_string(most) + ", not " + std::to_string(window)));
}

// 0, which None stands for: what fits the machine.
static size_t share_from(py::handle value, const std::string& name) {
  return value.is_none() ? 0 : window_from(value, name, kMessageBytesMax);
}

static uint32_t limit_from(py::handle value) { return value.is_none() ? driver::kUnlimited : value.cast<uint32_t>(); }

static TimeNs seconds_or_never(py::handle value, const char* name) {
  return value.is_none() ? kNever : seconds_to_ns(value.cast<double>(), name);
}

static TimeNs age_from(py::handle value, const char* name) {
  const TimeNs age = seconds_or_never(value, name);
  if (age > 0) return age;
  raise_status(invalid_argument(std::string(name) + " must be more than 0 seconds"));
}

// 0: no limit, for which None stands.
static double rate_from(py::handle value, const char* what, double least, double most) {
  if (value.is_none()) return 0;
  const auto rate = value.cast<double>();
  if (rate >= least && rate <= most) return rate;
  std::array<char, 64> range{};
  std::snprintf(range.data(), range.size(), " from %g to %g, not ", least, most);
  raise_status(invalid_argument(std::string(what) + range.data() + py::repr(value).cast<std::string>()));
}

static uint32_t at_least_one(py::handle value, const std::string& name) {
  const auto count = value.cast<uint32_t>();
  if (count >= 1) return count;
  raise_status(invalid_argument(name + " must be at least 1, not 0"));
}

static uint32_t pollers_from(py::handle value) {
  const auto count = value.cast<uint32_t>();
  if (count >= 1 && count <= driver::kPollersMax) return count;
  raise_status(invalid_argument("pollers must be from 1 to " + std::to_string(driver::kPollersMax) + ", not " +
                                std::to_string(count)));
}

// (number, processors): rrpc/_options.py finds out which.
static std::optional<NumaNode> numa_node_from(py::handle value) {
  if (value.is_none()) return std::nullopt;
  auto [number, cpus] = value.cast<std::pair<int, std::vector<int>>>();
  if (number >= 0 && !cpus.empty() && std::ranges::min(cpus) >= 0) return NumaNode{number, std::move(cpus)};
  raise_status(invalid_argument("numa_node must be a node's number and processors"));
}

static void set_option(driver::Options& options, const std::string& name, py::handle value) {
  rpc::SessionOptions& session = options.session;
  if (name == "slots")
    session.geometry.slots = value.cast<uint32_t>();
  else if (name == "slot_bytes")
    session.geometry.slot_bytes = value.cast<uint32_t>();
  else if (name == "read_depth")
    session.geometry.read_depth = value.cast<uint32_t>();
  else if (name == "calls_in_flight_max")
    session.calls_in_flight_max = value.cast<uint32_t>();
  else if (name == "exposed_bytes_max")
    session.exposed_bytes_max = share_from(value, name);
  else if (name == "landing_bytes_max")
    session.landing_bytes_max = share_from(value, name);
  else if (name == "queued_bytes_max")
    session.queued_bytes_max = share_from(value, name);
  else if (name == "lent_bytes_max")
    session.lent_bytes_max = share_from(value, name);
  else if (name == "message_bytes_max")
    session.message_bytes_max = window_from(value, name, kMessageBytesMax);
  else if (name == "buffers_max")
    session.buffers_max = static_cast<uint32_t>(window_from(value, name, kDescriptorsPerMessageMax));
  else if (name == "stream_window_items")
    session.stream_window_items = static_cast<uint32_t>(window_from(value, name, kStreamWindowItemsMax));
  else if (name == "stream_window_bytes")
    session.stream_window_bytes = window_from(value, name, kMessageBytesMax);
  else if (name == "metadata_bytes_max")
    session.metadata_bytes_max = metadata_limit_from(value.cast<uint32_t>());
  else if (name == "poll")
    options.poll = poll_mode_from(value.cast<std::string>());
  else if (name == "spin_us")
    options.spin = seconds_to_ns(value.cast<double>() / 1e6, "spin_us");
  else if (name == "keepalive_interval")
    session.keepalive_interval = seconds_to_ns(value.cast<double>(), "keepalive_interval");
  else if (name == "keepalive_timeout")
    session.keepalive_timeout = seconds_to_ns(value.cast<double>(), "keepalive_timeout");
  else if (name == "lease_timeout")
    session.lease_timeout = seconds_to_ns(value.cast<double>(), "lease_timeout");
  else if (name == "fetch_timeout")
    session.fetch_timeout = seconds_to_ns(value.cast<double>(), "fetch_timeout");
  else if (name == "connections_max")
    options.connections_max = value.cast<uint32_t>();
  else if (name == "max_concurrency")
    options.max_concurrency = limit_from(value);
  else if (name == "max_queue")
    options.max_queue = limit_from(value);
  else if (name == "rate_limit")
    options.rate_limit = rate_from(value, "rate_limit must be a number of calls a second", 1e-3, 1e9);
  else if (name == "rate_burst")
    options.rate_burst = rate_from(value, "rate_burst must be a number of calls", 1, 1e6);
  else if (name == "stream_handlers_max")
    options.stream_handlers_max = at_least_one(value, name);
  else if (name == "handshakes_max")
    options.handshakes_max = at_least_one(value, name);
  else if (name == "max_connection_age")
    options.max_connection_age = age_from(value, "max_connection_age");
  else if (name == "max_connection_age_grace")
    options.max_connection_age_grace = seconds_or_never(value, "max_connection_age_grace");
  else if (name == "any_user")
    options.any_user = value.cast<bool>();
  else if (name == "allow_clients")
    options.clients = value.is_none() ? std::nullopt : std::optional(principals_of(value));
  else if (name == "transports")
    options.transports = transports_from(value);
  else if (name == "rdma_security")
    options.rdma_security = protection_from(value);
  else if (name == "tls")
    options.tls = value.cast<bool>();
  else if (name == "shared_receive_slots")
    options.shared_receive_slots = value.cast<uint32_t>();
  else if (name == "pollers")
    options.pollers = pollers_from(value);
  else if (name == "numa_node")
    options.numa_node = numa_node_from(value);
  else if (!set_tls_file(options, name, value))
    raise_status(invalid_argument("unknown option '" + name + "'; see rrpc's options"));
}

driver::Options options_from(const py::dict& given) {
  driver::Options options;
#ifdef Py_GIL_DISABLED
  options.workers_contend = false;
#endif
  for (const auto& [key, value] : given) {
    const auto name = key.cast<std::string>();
    try {
      set_option(options, name, value);
    } catch (const py::cast_error&) {
      raise_status(invalid_argument("option '" + name + "' can't be " + py::repr(value).cast<std::string>()));
    }
  }
  if (options.rate_burst > 0 && options.rate_limit == 0)
    raise_status(invalid_argument("rate_burst is of a rate_limit: give that too"));
  raise_if_error(endpoint::validate(options.session.geometry));
  return options;
}

py::bytes bytes_of(std::string_view text) { return {text.data(), text.size()}; }

py::str text_of(std::string_view text) {
  PyObject* decoded = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(decoded);
}
Bytes bytes_view(const py::bytes& value) {
  return {reinterpret_cast<const std::byte*>(PyBytes_AS_STRING(value.ptr())),
          static_cast<size_t>(PyBytes_GET_SIZE(value.ptr()))};
}

endpoint::Buffer export_buffer(py::handle object, bool writable) {
  if (const py::handle lent = lent_buffer(object)) {
    endpoint::Buffer buffer = export_buffer(lent, writable);
    buffer.lend = true;
    return buffer;
  }
  Py_buffer view;
  if (PyObject_GetBuffer(object.ptr(), &view, writable ? PyBUF_WRITABLE : PyBUF_STRIDES) != 0)
    throw py::error_already_set();
  plan::share_references(view.obj);
  endpoint::Buffer buffer;
  buffer.length_bytes = static_cast<size_t>(view.len);
  buffer.hold = std::make_shared<PythonHold>(view);
  auto* const first = static_cast<std::byte*>(view.buf);
  if (writable || PyBuffer_IsContiguous(&view, 'C') != 0)
    buffer.data = first;
  else
    buffer.pieces = pieces_of(view);
  const bool in_pool = endpoint::Pool::process().find(first) != nullptr;
  if (!in_pool && buffer.length_bytes >= kCachedBytesMin) buffer.owner_id = owner_id_of(object.ptr());
  if (!writable) buffer.hold = watched(buffer);
  return buffer;
}

py::object exporter_of(const endpoint::Hold& hold) {
  return py::reinterpret_borrow<py::object>(dynamic_cast<const PythonHold&>(hold).exporter());
}

std::vector<endpoint::Buffer> export_buffers(py::handle sequence) {
  std::vector<endpoint::Buffer> buffers;
  if (sequence.is_none()) return buffers;
  for (const py::handle item : sequence) buffers.push_back(export_buffer(item, false));
  return buffers;
}

std::vector<endpoint::Buffer> export_buffers(const std::vector<py::object>& buffers) {
  std::vector<endpoint::Buffer> exported;
  for (const py::object& buffer : buffers) exported.push_back(export_buffer(buffer, false));
  return exported;
}

py::list list_of(std::span<py::object> values) {
  py::list list(values.size());
  for (size_t i = 0; i < values.size(); ++i) list[i] = std::move(values[i]);
  return list;
}

py::object wrap_blocks(std::vector<endpoint::ReceivedBlock>& blocks) {
  if (blocks.empty()) return py::none();
  py::list list(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    list[i] = blocks[i] ? wrap_block(std::move(blocks[i])) : py::object(py::none());
  }
  return list;
}

}  // namespace rrpc::bind
