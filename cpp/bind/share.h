// Clients and servers of the core as several Python objects hold them.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>

#include "bind/gil.h"
#include "bind/plan/threads.h"
#include "driver/client.h"
#include "driver/server.h"

namespace rrpc::bind {

// Ending one waits for locks, so never under the GIL; and in a forked child nothing may be touched.
template <typename T>
std::shared_ptr<T> share(std::unique_ptr<T> owned) {
  return {owned.release(), [](T* dying) {
            if (dying->belongs_to_parent()) return;
            if constexpr (std::is_same_v<T, driver::Server>) {
              // In a finalizer or a callback that its own engine runs: it would wait for itself.
              if (dying->on_own_thread()) {
                try {
                  return std::thread([dying] { delete dying; }).detach();
                } catch (const std::system_error&) {
                  return dying->stop();  // no threads left: its memory stays
                }
              }
            }
            if (PyGILState_Check() == 0) {
              delete dying;
              return;
            }
            const WithoutGil freed;
            delete dying;
          }};
}

// What a Python Client is made of; what a Python Server has.
pybind11::object wrap_client(std::unique_ptr<driver::Client> client);
std::shared_ptr<driver::Server> server_of(pybind11::handle server);
// What a loop is told of calls with, once the server serves in one.
class PyLoopNews;
std::shared_ptr<PyLoopNews> loop_news_of(pybind11::handle server);
// Where a Python Client keeps the core's: null once it is closed, by any thread.
class ClientSlot {
 public:
  std::shared_ptr<driver::Client> get() const {
    const std::lock_guard lock(latch_);
    return client_;
  }
  // Returns what it had.
  std::shared_ptr<driver::Client> set(std::shared_ptr<driver::Client> client) {
    const std::lock_guard lock(latch_);
    return std::exchange(client_, std::move(client));
  }

 private:
  mutable Latch latch_;
  std::shared_ptr<driver::Client> client_;
};
const ClientSlot& slot_of(pybind11::handle client);

// A Python Call for one that was begun elsewhere; `taken` is its reply, (payload, blocks), where that was taken
// already.
pybind11::object wrap_call(std::shared_ptr<driver::Client> client, rpc::ClientCallRef call, pybind11::object taken);

}  // namespace rrpc::bind
