#include "driver/rails.h"

#include <sys/random.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "base/clock.h"
#include "base/detached_thread.h"
#include "base/text.h"
#include "driver/devices.h"
#include "driver/engine.h"
#include "driver/transports.h"

namespace rrpc::driver {
namespace {

using endpoint::RailState;
using endpoint::RailToken;

constexpr TimeNs kLook = kSecond;          // between looks at the rails of a connection
constexpr TimeNs kPatience = 5 * kSecond;  // with one that is being dialled
constexpr TimeNs kPauseMax = 16 * kSecond;

bool read_hexadecimal(const std::string& text, RailToken& token) {
  if (text.size() != 2 * token.size()) return false;
  const auto digit = [](char one) { return one >= 'a' ? one - 'a' + 10 : one - '0'; };
  for (size_t i = 0; i < token.size(); ++i)
    token[i] = static_cast<std::byte>(digit(text[2 * i]) << 4 | digit(text[2 * i + 1]));
  return hexadecimal(token) == text;
}

}  // namespace

std::string RailTokens::give(const ConnectionRef& connection) {
  RailToken token;
  if (getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) return {};
  std::lock_guard lock(mutex_);
  if (connections_.size() >= prune_at_) {
    std::erase_if(connections_, [](const auto& given) { return given.second.expired(); });
    prune_at_ = std::max<size_t>(64, 2 * connections_.size());
  }
  connections_[token] = connection;
  return hexadecimal(token);
}

ConnectionRef RailTokens::find(const RailToken& token) {
  std::lock_guard lock(mutex_);
  const auto it = connections_.find(token);
  return it == connections_.end() ? nullptr : it->second.lock();
}

RailKeeper::RailKeeper(const ConnectionRef& connection, std::vector<Address> addresses,
                       const rpc::HelloFields& server_hello) {
  shared_->connection = connection;
  shared_->addresses = std::move(addresses);
  const auto token = server_hello.find(kRailToken);
  if (token == server_hello.end())
    why_none_ = "the server takes no rails";
  else if (!read_hexadecimal(token->second, shared_->token))
    why_none_ = "the server's rail_token is no token";
  else if (!start_detached([shared = shared_] { keep(*shared); }))
    why_none_ = "no thread is to be had";
}

// Nobody waits for a notification that is missed: the thread looks again in a second, and holds nothing.
RailKeeper::~RailKeeper() {
  shared_->stop = true;
  shared_->stopped.notify_one();
}

std::string RailKeeper::describe(endpoint::Endpoint& endpoint) const {
  std::vector<std::string> parts;
  for (size_t i = 0; i < shared_->addresses.size(); ++i) {
    std::string why = why_none_.empty() ? endpoint.why_no_rail(i) : why_none_;
    if (!why.empty() && !shared_->failures[i].empty()) why = shared_->failures[i];
    parts.push_back(shared_->addresses[i].without_options() + (why.empty() ? " connected" : " not connected: " + why));
  }
  return join(parts, "; ");
}

void RailKeeper::keep(Shared& shared) {
  std::array<Dialled, endpoint::kRailsMax> dialled{};
  while (!shared.stop) {
    bool goes_on = true;
    try {
      for (size_t i = 0; i < shared.addresses.size() && goes_on && !shared.stop; ++i)
        goes_on = look_after(shared, i, dialled[i]);
    } catch (const std::bad_alloc&) {
      goes_on = true;  // with the next look
    }
    if (!goes_on) return;
    std::unique_lock lock(shared.mutex);
    shared.stopped.wait_for(lock, std::chrono::nanoseconds(kLook), [&shared] { return shared.stop.load(); });
  }
}

// False: the connection has ended.
bool RailKeeper::look_after(Shared& shared, size_t index, Dialled& dialled) {
  const ConnectionRef connection = shared.connection.lock();
  const auto engine = connection == nullptr ? nullptr : connection->attended_by.lock();
  if (engine == nullptr) return false;
  const TimeNs now = now_ns();
  {
    std::lock_guard lock(connection->mutex);
    endpoint::Endpoint& endpoint = connection->session().endpoint();
    if (connection->session().failed()) return false;
    const RailState state = endpoint.rail_state(index);
    const bool free = endpoint.may_add_rail(index);
    engine->settle(connection, now);  // the rail may have been found to be lost
    if (state == RailState::kCarries) dialled.pause = 0;
    if (state == RailState::kCarries || state == RailState::kConnecting || !free) return true;
    if (now < dialled.at + dialled.pause) return true;
  }
  const Status status = dial(shared, connection, *engine, index);
  dialled.at = now_ns();
  dialled.pause = std::clamp(2 * dialled.pause, kLook, kPauseMax);
  std::lock_guard lock(connection->mutex);
  shared.failures[index] = status.message();
  return true;
}

Status RailKeeper::dial(const Shared& shared, const ConnectionRef& connection, Engine& engine, size_t index) {
  const Address& address = shared.addresses[index];
  RRPC_ASSIGN_OR_RETURN(DeviceEntry * device, find_device(address.scheme));
  const auto config = endpoint::queue_pair_config(connection->options().session.geometry);
  endpoint::RailQueues queues;  // what is left in it goes without the mutex
  queues.completions = device->device->create_completion_queue(config.send_depth + config.receive_depth);
  RRPC_ASSIGN_OR_RETURN(queues.queue_pair, device->device->open(*queues.completions, address.rest, config,
                                                                deadline_after(now_ns(), kPatience)));
  Status status;
  {
    std::lock_guard lock(connection->mutex);
    const TimeNs now = now_ns();
    status = connection->session().endpoint().add_rail(index, queues, shared.token, deadline_after(now, kPatience));
    engine.settle(connection, now);
  }
  engine.rouse(connection);
  return status;
}

}  // namespace rrpc::driver
