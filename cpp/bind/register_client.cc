// Client and Call. The GIL is released around everything that may wait or take a lock of the core.
#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <utility>

#include "bind/convert.h"
#include "bind/deferred.h"
#include "bind/gil.h"
#include "bind/loop.h"
#include "bind/metadata.h"
#include "bind/register.h"
#include "bind/share.h"
#include "bind/stream.h"
#include "driver/client.h"

namespace rrpc::bind {
namespace {

using driver::WaitResult;
using ClientRef = std::shared_ptr<driver::Client>;

}  // namespace

py::tuple take_reply(rpc::ClientCall& call) {
  if (!call.status().ok()) raise_status(call.status(), {call.details(), call.metadata(), call.not_executed()});
  return py::make_tuple(bytes_of(as_text(call.payload())), wrap_blocks(call.blocks()));
}

bool wait_for(driver::Client& client, const rpc::ClientCallRef& call, TimeNs deadline) {
  while (true) {
    WaitResult result;
    {
      const WithoutGil freed;
      result = client.wait(call, deadline, g_deferred_pending);
    }
    check_signals(result == WaitResult::kInterrupted, client.engine());
    run_deferred();
    if (result != WaitResult::kInterrupted) return result == WaitResult::kDone;
  }
}

void interrupt(driver::Client& client, const rpc::ClientCallRef& call) {
  const WithoutGil freed;
  client.cancel(call, cancelled("the caller was interrupted"));
}

void end_if_interrupted(driver::Client& client, const rpc::ClientCallRef& call) {
  if (PyErr_CheckSignals() == 0) return;
  const py::error_already_set raised;
  interrupt(client, call);
  throw py::error_already_set(raised);
}

namespace {

class Call {
 public:
  Call(ClientRef client, rpc::ClientCallRef call) : client_(std::move(client)), call_(std::move(call)) {}

  void set_taken(py::object reply) {
    if (reply) taken_ = std::make_unique<py::tuple>(std::move(reply));
  }
  bool done() {
    if (call_->done()) return true;
    if (call_->deadline() > now_ns()) return false;
    return wait(py::float_(0.0));
  }
  bool wait(py::handle timeout) { return call_->done() || wait_for(*client_, call_, deadline_from(timeout)); }
  py::tuple result(py::handle timeout) {
    if (!wait(timeout)) {
      PyErr_SetString(PyExc_TimeoutError, "the call is not done yet");
      throw py::error_already_set();
    }
    if (taken_) return *taken_;
    call_->stamps.mark(&rpc::CallStamps::taken);
    py::tuple reply = take_reply(*call_);
    taken_ = std::make_unique<py::tuple>(reply);
    return reply;
  }
  bool cancel() {
    bool cancelled_now = false;
    {
      const WithoutGil freed;
      cancelled_now = client_->cancel(call_, cancelled("the call was cancelled by its caller"));
    }
    release_deferred(client_->engine());
    return cancelled_now;
  }
  py::object stamps() const {
    const rpc::CallStamps& at = call_->stamps;
    if (at.clock == nullptr || !call_->done()) return py::none();
    return py::make_tuple(at.started, at.registered, at.sent, at.replied, at.fetched, at.taken);
  }
  py::bytes metadata() const { return bytes_of(call_->done() ? call_->metadata() : std::string()); }
  bool was_cancelled() const { return call_->done() && call_->status().code() == StatusCode::kCancelled; }
  void on_done(py::object callback) {
    raise_if_error(client_->check_usable());
    auto function = deferred_callback(callback.inc_ref().ptr());
    bool later = false;
    {
      const WithoutGil freed;
      later = client_->on_done(call_, std::move(function));
    }
    if (!later) call_now(callback.ptr());
    release_deferred(client_->engine());
  }

 private:
  ClientRef client_;
  rpc::ClientCallRef call_;
  std::unique_ptr<py::tuple> taken_;
};

class PyClient {
 public:
  explicit PyClient(std::unique_ptr<driver::Client> client) { slot_.set(share(std::move(client))); }
  PyClient(const std::string& address, const py::dict& options, py::handle timeout, py::handle serve) {
    const driver::Options parsed = options_from(options);
    const TimeNs deadline = deadline_from(timeout);
    std::shared_ptr<driver::Server> server = serve.is_none() ? nullptr : server_of(serve);
    Result<std::unique_ptr<driver::Client>> client = unavailable("");
    {
      const WithoutGil freed;
      client = driver::Client::connect(address, parsed, deadline, std::move(server));
    }
    if (!client.ok()) raise_status(client.status(), {.not_executed = true});
    slot_.set(share(std::move(*client)));
  }

  static rpc::CallRequest make_request(const py::bytes& method, const py::bytes& payload, py::handle buffers,
                                       py::handle timeout, const PackedMetadata& metadata) {
    rpc::CallRequest request;
    request.method = as_text(bytes_view(method));
    request.payload = bytes_view(payload);
    request.metadata = metadata.view();
    request.buffers = export_buffers(buffers);
    request.deadline = deadline_from(timeout);
    return request;
  }

  static rpc::ClientCallRef begin(const ClientRef& client, const py::bytes& method, const py::bytes& payload,
                                  py::handle buffers, py::handle out, py::handle timeout, py::handle metadata,
                                  bool traced = false, const std::shared_ptr<driver::LoopCall>& in_loop = nullptr) {
    rpc::ClientCallRef call = in_loop;
    if (call == nullptr) call = client->new_call();
    if (traced) call->stamps.clock = now_ns;
    call->stamps.mark(&rpc::CallStamps::started);
    const PackedMetadata packed(metadata);
    rpc::CallRequest request = make_request(method, payload, buffers, timeout, packed);
    if (!out.is_none()) request.out = export_buffer(out, true);
    Status status;
    {
      const WithoutGil freed;
      status = in_loop != nullptr ? client->start_in_loop(in_loop, std::move(request))
                                  : client->start(call, std::move(request));
    }
    release_deferred(client->engine());
    if (!status.ok()) raise_status(status, {.not_executed = call->not_executed()});
    return call;
  }

  py::tuple call(const py::bytes& method, const py::bytes& payload, py::handle buffers, py::handle out,
                 py::handle timeout, py::handle metadata) {
    const ClientRef client = still_open();
    const rpc::ClientCallRef call = begin(client, method, payload, buffers, out, timeout, metadata);
    try {
      wait_for(*client, call, kNever);
    } catch (...) {
      interrupt(*client, call);
      throw;
    }
    return take_reply(*call);
  }

  Call start(const py::bytes& method, const py::bytes& payload, py::handle buffers, py::handle out, py::handle timeout,
             py::handle metadata, bool traced) {
    ClientRef client = still_open();
    rpc::ClientCallRef call = begin(client, method, payload, buffers, out, timeout, metadata, traced);
    client->engine().tick_soon();
    end_if_interrupted(*client, call);
    return {std::move(client), std::move(call)};
  }

  Call start_in_loop(const PyLoopDriver& driver, py::object target, const py::bytes& method, const py::bytes& payload,
                     py::handle buffers, py::handle out, py::handle timeout, py::handle metadata, bool traced) {
    ClientRef client = still_open();
    const auto call = std::make_shared<PyLoopCall>(driver.queue(), std::move(target));
    begin(client, method, payload, buffers, out, timeout, metadata, traced, call);
    return {std::move(client), call};
  }

  std::unique_ptr<PyStream> open(const py::bytes& method, const py::bytes& payload, py::handle buffers,
                                 py::handle timeout, py::handle metadata, int kind) {
    if (kind != rpc::kClientStreams && kind != rpc::kServerStreams &&
        kind != (rpc::kClientStreams | rpc::kServerStreams))
      raise_status(invalid_argument("a call with streams of kind " + std::to_string(kind) + "; 2, 4 and 6 are"));
    const ClientRef client = still_open();
    const PackedMetadata packed(metadata);
    rpc::CallRequest request = make_request(method, payload, buffers, timeout, packed);
    request.kind = static_cast<uint8_t>(kind);
    const rpc::ClientCallRef call = client->new_call();
    Result<std::unique_ptr<driver::Stream>> stream = unavailable("");
    {
      const WithoutGil freed;
      stream = client->open(call, std::move(request));
    }
    release_deferred(client->engine());
    if (!stream.ok()) raise_status(stream.status(), {.not_executed = call->not_executed()});
    return std::make_unique<PyStream>(client, std::move(*stream));
  }

  void close(py::handle) {
    const ClientRef client = slot_.set(nullptr);
    if (client == nullptr) return;
    {
      const WithoutGil freed;
      client->close();
    }
    release_deferred(client->engine());
  }

  bool usable() const {
    const ClientRef client = slot_.get();
    return client != nullptr && client->usable();
  }
  size_t calls_in_flight() const {
    const ClientRef client = slot_.get();
    return client == nullptr ? 0 : client->calls_in_flight();
  }
  void on_unusable(py::object callback) {
    auto function = deferred_callback(callback.inc_ref().ptr());
    const ClientRef client = slot_.get();
    bool later = client != nullptr && !client->belongs_to_parent();
    if (later) {
      const WithoutGil freed;
      later = client->on_unusable(std::move(function));
    }
    if (!later) call_now(callback.ptr());
  }

  py::dict info() {
    const ClientRef client = of_this_process();
    std::map<std::string, std::string> fields;
    {
      const WithoutGil freed;
      fields = client->info();
    }
    py::dict out, why_not;
    for (const auto& [name, value] : fields) {
      if (name.starts_with("why_not_"))
        why_not[text_of(name.substr(8))] = text_of(value);
      else
        out[text_of(name)] = text_of(value);
    }
    out["why_not"] = why_not;
    return out;
  }

  py::dict peer_hello() {
    const ClientRef client = of_this_process();
    rpc::HelloFields fields;
    {
      const WithoutGil freed;
      fields = client->peer_hello();
    }
    py::dict out;
    for (const auto& [name, value] : fields) out[py::bytes(name)] = py::bytes(value);
    return out;
  }

  py::dict stats() {
    const ClientRef client = of_this_process();
    std::map<std::string, int64_t> values;
    {
      const WithoutGil freed;
      values = client->stats();
    }
    py::dict out;
    for (const auto& [name, value] : values) out[py::str(name)] = value;
    return out;
  }

  const ClientSlot& slot() const { return slot_; }

 private:
  // What a call begins with it keeps to its end, whatever others leave of the slot.
  ClientRef still_open() const {
    ClientRef client = slot_.get();
    if (client == nullptr) raise_status(unavailable("the client is closed"), {.not_executed = true});
    return client;
  }
  ClientRef of_this_process() const {
    ClientRef client = still_open();
    raise_if_error(client->check_usable());
    return client;
  }

  ClientSlot slot_;
};

}  // namespace

py::object wrap_client(std::unique_ptr<driver::Client> client) {
  return py::cast(std::make_unique<PyClient>(std::move(client)));
}

const ClientSlot& slot_of(py::handle client) { return client.cast<const PyClient&>().slot(); }

py::object wrap_call(ClientRef client, rpc::ClientCallRef call, py::object taken) {
  Call wrapped(std::move(client), std::move(call));
  wrapped.set_taken(std::move(taken));
  return py::cast(std::move(wrapped));
}

void register_client(py::module_& module) {
  py::class_<Call>(module, "Call")
      .def("done", &Call::done)
      .def("wait", &Call::wait, py::arg("timeout") = py::none())
      .def("result", alone(&Call::result), py::arg("timeout") = py::none())
      .def("cancel", &Call::cancel)
      .def("cancelled", &Call::was_cancelled)
      .def("metadata", &Call::metadata)
      .def("stamps", &Call::stamps)
      .def("on_done", &Call::on_done, py::arg("callback"));
  py::class_<PyClient>(module, "Client")
      .def(py::init<const std::string&, const py::dict&, py::handle, py::handle>(), py::arg("address"),
           py::arg("options"), py::arg("timeout"), py::arg("serve") = py::none())
      .def("call", &PyClient::call, py::arg("method"), py::arg("payload"), py::arg("buffers"), py::arg("out"),
           py::arg("timeout"), py::arg("metadata") = py::bytes())
      .def("start", &PyClient::start, py::arg("method"), py::arg("payload"), py::arg("buffers"), py::arg("out"),
           py::arg("timeout"), py::arg("metadata") = py::bytes(), py::arg("traced") = false)
      .def("start_in_loop", &PyClient::start_in_loop, py::arg("driver"), py::arg("target"), py::arg("method"),
           py::arg("payload"), py::arg("buffers"), py::arg("out"), py::arg("timeout"),
           py::arg("metadata") = py::bytes(), py::arg("traced") = false)
      .def("open", &PyClient::open, py::arg("method"), py::arg("payload"), py::arg("buffers"), py::arg("timeout"),
           py::arg("metadata"), py::arg("kind"))
      .def("close", &PyClient::close, py::arg("timeout") = py::none())
      .def("usable", &PyClient::usable)
      .def("on_unusable", &PyClient::on_unusable, py::arg("callback"))
      .def("calls_in_flight", &PyClient::calls_in_flight)
      .def("info", &PyClient::info)
      .def("peer_hello", &PyClient::peer_hello)
      .def("stats", &PyClient::stats);
}

}  // namespace rrpc::bind
