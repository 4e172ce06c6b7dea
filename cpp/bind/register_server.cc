// Server. The GIL is released around everything that may wait or take a lock of the core.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bind/convert.h"
#include "bind/deferred.h"
#include "bind/gil.h"
#include "bind/loop.h"
#include "bind/policy.h"
#include "bind/register.h"
#include "bind/request.h"
#include "bind/share.h"
#include "bind/stream.h"
#include "driver/server.h"

namespace rrpc::bind {
namespace {

using driver::NextResult;

class PyServer {
 public:
  explicit PyServer(const py::dict& options) {
    const driver::Options parsed = options_from(options);
    const WithoutGil freed;
    server_ = share(std::make_unique<driver::Server>(parsed));
  }
  ~PyServer() {
    if (server_->belongs_to_parent()) return;
    const WithoutGil freed;
    server_->stop();  // clients may hold it longer
    server_.reset();
  }
  PyServer(const PyServer&) = delete;
  PyServer& operator=(const PyServer&) = delete;

  std::string listen(const std::string& address, bool for_others) {
    check_process();
    Result<std::string> bound = unavailable("");
    {
      const WithoutGil freed;
      bound = for_others ? server_->listen_for_others(address) : server_->listen(address);
    }
    raise_if_error(bound.status());
    return *bound;
  }

  void redirect(const std::string& bound, std::vector<std::string> targets) {
    check_process();
    Status status;
    {
      const WithoutGil freed;
      status = server_->redirect(bound, std::move(targets));
    }
    raise_if_error(status);
  }

  void add_to_hello(const py::dict& fields) {
    check_process();
    rpc::HelloFields parsed;
    for (const auto& [name, value] : fields) {
      auto [it, added] = parsed.emplace(name.cast<std::string>(), value.cast<std::string>());
      if (std::max(it->first.size(), it->second.size()) > UINT16_MAX)
        raise_status(invalid_argument("a field of HELLO longer than 65535 bytes"));
    }
    const WithoutGil freed;
    server_->add_to_hello(std::move(parsed));
  }

  void set_policy(std::shared_ptr<driver::Policy> policy) {
    check_process();
    const WithoutGil freed;
    server_->set_policy(std::move(policy));
  }

  void on_denials(const py::object& callback) {
    check_process();
    auto tell = deferred_callback(callback.inc_ref().ptr());
    const WithoutGil freed;
    server_->authorization().on_denials(std::move(tell));
  }
  py::tuple tls_state() {
    check_process();
    std::string problem;
    provider::TlsContext::Refusals refusals;
    {
      const WithoutGil freed;
      problem = server_->tls_problem();
      refusals = server_->tls_refusals();
    }
    return py::make_tuple(text_of(problem), refusals.count, text_of(refusals.last));
  }
  py::list take_denials() {
    check_process();
    return texts_of(server_->authorization().take_denials());
  }

  py::object next(py::handle timeout, bool builtin) {
    return next_until(deadline_from(timeout), builtin ? driver::Lane::kBuiltin : driver::Lane::kWorkers);
  }

  void serve_apart(const std::vector<std::string>& methods) {
    check_process();
    const WithoutGil freed;
    server_->serve_apart(methods);
  }

  void serve_in_loop(const PyLoopDriver& driver, py::object target, const std::vector<std::string>& methods,
                     uint32_t max_concurrency, bool all) {
    check_process();
    loop_queue_ = driver.queue();
    loop_news_ = std::make_shared<PyLoopNews>(std::move(target));
    const WithoutGil freed;
    server_->serve_in_loop(driver.queue(), loop_news_, methods, max_concurrency, all);
  }

  py::list next_in_loop() {
    check_process();
    std::vector<driver::Work> taken;
    {
      const WithoutGil freed;
      taken = server_->next_in_loop();
    }
    py::list requests;
    for (driver::Work& work : taken) requests.append(request_of(work));
    return requests;
  }

  void notify_given_up(uint64_t handle) {
    check_process();
    const auto told = [queue = loop_queue_, item = std::make_shared<PyLoopGivenUp>(loop_news_, handle)] {
      queue->push(item);
    };
    const WithoutGil freed;
    if (server_->on_cancel(handle, told) == driver::OnCancel::kCancelled) told();
  }

  py::object reply(uint64_t handle, const py::bytes& payload, py::handle buffers, int out_index,
                   const py::bytes& metadata) {
    check_process();
    rpc::Reply reply = make_reply(payload, buffers, out_index, metadata);
    return send(handle, std::move(reply));
  }

  py::object reply_error(uint64_t handle, int code, const std::string& message, const py::bytes& details,
                         const py::bytes& metadata, bool not_executed) {
    check_process();
    if (code <= 0 || code > kStatusCodeMax) raise_status(invalid_argument("status code " + std::to_string(code)));
    rpc::Reply reply;
    reply.status = Status(static_cast<StatusCode>(code), message);
    reply.message_details = as_text(bytes_view(details));
    reply.metadata = bytes_view(metadata);
    reply.not_executed = not_executed;
    return send(handle, std::move(reply));
  }

  std::unique_ptr<PyStream> stream(uint64_t handle) {
    check_process();
    Result<std::unique_ptr<driver::Stream>> stream = unavailable("");
    {
      const WithoutGil freed;
      stream = server_->stream(handle);
    }
    raise_if_error(stream.status());
    return std::make_unique<PyStream>([this, handle] { return server_->park(handle); }, std::move(*stream));
  }
  const std::shared_ptr<driver::Server>& core() const {
    check_process();
    return server_;
  }
  py::object peer(uint64_t handle) {
    check_process();
    Result<std::unique_ptr<driver::Client>> client = unavailable("");
    {
      const WithoutGil freed;
      client = driver::Client::of_peer(server_, handle);
    }
    raise_if_error(client.status());
    return wrap_client(std::move(*client));
  }

  void set_aside(uint64_t handle) {
    check_process();
    Status status;
    {
      const WithoutGil freed;
      status = server_->set_aside(handle);
    }
    raise_if_error(status);
  }
  void bring_back(uint64_t handle) {
    check_process();
    const WithoutGil freed;
    server_->bring_back(handle);
  }

  void lend(uint64_t handle) {
    check_process();
    Status status;
    {
      const WithoutGil freed;
      status = server_->lend(handle);
    }
    raise_if_error(status);
  }
  void take_up(uint64_t handle) {
    check_process();
    const WithoutGil freed;
    server_->take_up(handle);
  }

  size_t out_bytes(uint64_t handle) {
    driver::Work work;
    return find(handle, work) ? work.call->out_bytes() : 0;
  }
  py::object call_info(uint64_t handle) {
    driver::Work work;
    if (!find(handle, work)) return py::none();
    std::string peer;
    provider::PeerIdentity identity;
    {
      const WithoutGil freed;
      std::lock_guard lock(work.connection->mutex);
      peer = work.connection->session().endpoint().queue_pair().peer_description();
      identity = work.connection->peer_identity();
    }
    const rpc::ServerCall& call = *work.call;
    return py::make_tuple(text_of(peer), call.ready_at() - call.arrived_at(), work.taken_at - call.ready_at(),
                          tuple_of(identity));
  }
  py::str why_denied(uint64_t handle, const std::string& token_subject) {
    check_process();
    std::string why;
    {
      const WithoutGil freed;
      why = server_->why_denied(handle, token_subject);
    }
    return text_of(why);
  }
  py::object stamps(uint64_t handle) {
    driver::Work work;
    if (!find(handle, work)) return py::none();
    return py::make_tuple(work.call->arrived_at(), work.call->ready_at(), work.taken_at);
  }
  bool is_cancelled(uint64_t handle) {
    driver::Work work;
    return !find(handle, work) || work.call->given_up();
  }
  bool is_late(uint64_t handle) {
    driver::Work work;
    return !find(handle, work) || work.call->late(now_ns());
  }
  bool on_cancel(uint64_t handle, py::object callback) {
    check_process();
    auto function = deferred_callback(callback.inc_ref().ptr());
    auto found = driver::OnCancel::kAnswered;
    {
      const WithoutGil freed;
      found = server_->on_cancel(handle, std::move(function));
    }
    if (found == driver::OnCancel::kCancelled) call_now(callback.ptr());
    release_deferred(server_->engine());
    return found != driver::OnCancel::kAnswered;
  }

  void stop_listening() {
    check_process();
    const WithoutGil freed;
    server_->stop_listening();
  }

  size_t send_away(size_t count, const std::string& reason) {
    check_process();
    const WithoutGil freed;
    return server_->send_away(count, reason);
  }

  py::tuple drain(py::handle timeout) {
    check_process();
    const TimeNs deadline = deadline_from(timeout);
    driver::LeftOver left;
    {
      const WithoutGil freed;
      left = server_->drain(deadline, [] {
        const py::gil_scoped_acquire held;
        return PyErr_CheckSignals() != 0;
      });
    }
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    release_deferred(server_->engine());
    return py::make_tuple(left.calls, left.results);
  }
  void stop() {
    if (server_->belongs_to_parent()) return;
    {
      const WithoutGil freed;
      server_->stop();
    }
    if (loop_news_ != nullptr) loop_news_->forget();
    run_deferred();  // its engine is gone
  }
  bool stopped() const { return server_->ended(); }
  const std::shared_ptr<PyLoopNews>& loop_news() const { return loop_news_; }

  py::dict stats() {
    check_process();
    size_t connections = 0, running = 0, waiting = 0;
    {
      const WithoutGil freed;
      connections = server_->connection_count();
      running = server_->calls_running();
      waiting = server_->calls_waiting();
    }
    py::dict out;
    out["connections"] = connections;
    out["calls_running"] = running;
    out["calls_waiting"] = waiting;
    return out;
  }

 private:
  void check_process() const {
    if (server_->belongs_to_parent())
      raise_status(failed_precondition("this server belongs to the parent process; make a new one after fork"));
  }

  static rpc::Reply make_reply(const py::bytes& payload, py::handle buffers, int out_index, const py::bytes& metadata) {
    rpc::Reply reply;
    reply.metadata = bytes_view(metadata);
    reply.payload = bytes_view(payload);
    if (!buffers.is_none()) reply.buffers = export_buffers(buffers);
    if (out_index >= 0) reply.out_index = static_cast<uint16_t>(out_index);
    return reply;
  }

  // Gives the code and the message of the error that the client gets instead, or None.
  py::object send(uint64_t handle, rpc::Reply reply) {
    Result<driver::Answered> answered = driver::Answered();
    {
      const WithoutGil freed;
      answered = server_->reply(handle, std::move(reply));
    }
    release_deferred(server_->engine());
    raise_if_error(answered.status());
    const Status& instead = answered->instead;
    if (instead.ok()) return py::none();
    return py::make_tuple(static_cast<int>(instead.code()), text_of(instead.message()));
  }

  bool find(uint64_t handle, driver::Work& work) {
    check_process();
    const WithoutGil freed;
    return server_->find(handle, work);
  }

  py::object next_until(TimeNs deadline, driver::Lane lane) {
    check_process();
    while (true) {
      driver::Work work;
      NextResult result;
      {
        const WithoutGil freed;
        result = server_->next(work, deadline, g_deferred_pending, lane);
      }
      check_signals(result == NextResult::kInterrupted, server_->engine());
      run_deferred();
      if (result == NextResult::kWork) return request_of(work);
      if (result != NextResult::kInterrupted) return py::none();
    }
  }

  std::shared_ptr<driver::Server> server_;
  std::shared_ptr<driver::LoopQueue> loop_queue_;
  std::shared_ptr<PyLoopNews> loop_news_;
};

}  // namespace

std::shared_ptr<driver::Server> server_of(py::handle server) {
  if (!py::isinstance<PyServer>(server)) throw py::type_error("serve must be a Server or None");
  return server.cast<PyServer&>().core();
}

std::shared_ptr<PyLoopNews> loop_news_of(py::handle server) {
  const auto& news = server.cast<const PyServer&>().loop_news();
  if (news == nullptr) throw py::value_error("the server serves in no loop");
  return news;
}

void register_server(py::module_& module) {
  register_request(module);
  py::class_<PyServer>(module, "Server")
      .def(py::init<const py::dict&>(), py::arg("options"))
      .def("listen", &PyServer::listen, py::arg("address"), py::arg("for_others") = false)
      .def("redirect", &PyServer::redirect, py::arg("bound"), py::arg("targets"))
      .def("add_to_hello", &PyServer::add_to_hello, py::arg("fields"))
      .def("set_policy", &PyServer::set_policy, py::arg("policy"))
      .def("on_denials", &PyServer::on_denials, py::arg("callback"))
      .def("tls_state", &PyServer::tls_state)
      .def("take_denials", &PyServer::take_denials)
      .def("next", &PyServer::next, py::arg("timeout") = py::none(), py::arg("builtin") = false)
      .def("serve_apart", &PyServer::serve_apart, py::arg("methods"))
      .def("serve_in_loop", &PyServer::serve_in_loop, py::arg("driver"), py::arg("target"), py::arg("methods"),
           py::arg("max_concurrency"), py::arg("all"))
      .def("stop_listening", &PyServer::stop_listening)
      .def("next_in_loop", &PyServer::next_in_loop)
      .def("notify_given_up", &PyServer::notify_given_up, py::arg("handle"))
      .def("reply", &PyServer::reply, py::arg("handle"), py::arg("payload"), py::arg("buffers") = py::none(),
           py::arg("out_index") = -1, py::arg("metadata") = py::bytes())
      .def("reply_error", &PyServer::reply_error, py::arg("handle"), py::arg("code"), py::arg("message"),
           py::arg("details") = py::bytes(), py::arg("metadata") = py::bytes(), py::arg("not_executed") = false)
      .def("stream", &PyServer::stream, py::arg("handle"), py::keep_alive<0, 1>())
      .def("peer", &PyServer::peer, py::arg("handle"))
      .def("set_aside", &PyServer::set_aside, py::arg("handle"))
      .def("bring_back", &PyServer::bring_back, py::arg("handle"))
      .def("lend", &PyServer::lend, py::arg("handle"))
      .def("take_up", &PyServer::take_up, py::arg("handle"))
      .def("out_bytes", &PyServer::out_bytes, py::arg("handle"))
      .def("call_info", &PyServer::call_info, py::arg("handle"))
      .def("why_denied", &PyServer::why_denied, py::arg("handle"), py::arg("token_subject"))
      .def("stamps", &PyServer::stamps, py::arg("handle"))
      .def("is_cancelled", &PyServer::is_cancelled, py::arg("handle"))
      .def("is_late", &PyServer::is_late, py::arg("handle"))
      .def("on_cancel", &PyServer::on_cancel, py::arg("handle"), py::arg("callback"))
      .def("send_away", &PyServer::send_away, py::arg("count"), py::arg("reason"))
      .def("drain", &PyServer::drain, py::arg("timeout"))
      .def("stop", &PyServer::stop)
      .def("stopped", &PyServer::stopped)
      .def("stats", &PyServer::stats);
}

}  // namespace rrpc::bind
