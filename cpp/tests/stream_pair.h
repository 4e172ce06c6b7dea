// Two sessions and a call with streams between them.
#pragma once

#include "session_world.h"

namespace rrpc::rpc {

// A call whose items go from the client to the server, neither of which does anything unasked.
struct Pair {
  explicit Pair(uint32_t items, uint64_t bytes) : world(1) {
    SessionOptions server;
    server.stream_window_items = items;
    server.stream_window_bytes = bytes;
    world.server.request = [this](const ServerCallRef& request) { requests.push_back(request); };
    world.client.call_done = [this](const ClientCallRef&) { ++calls_done; };
    world.connect({}, server);
    call = start(kClientStreams);
    settle();
  }
  ClientCallRef start(uint8_t kind) {
    auto made = std::make_shared<ClientCall>();
    CallRequest request{"m", as_bytes("p"), {}, std::nullopt, kNever};
    request.kind = kind;
    EXPECT_TRUE(world.client.session->client().start(made, std::move(request), world.network.now()).ok());
    return made;
  }
  void settle() { world.run_for(kMillisecond); }
  bool send(size_t bytes, bool more = false) { return send(std::string(bytes, 'x'), more); }
  bool send(const std::string& payload, bool more) {
    OutgoingItem item{as_bytes(payload), {}};
    return world.client.session->streams().send(call->stream(), item, more).value();
  }
  bool send_buffer(size_t bytes) {
    OutgoingItem item;
    item.buffers.push_back(pattern_buffer(bytes, 1, 1));
    return world.client.session->streams().send(call->stream(), item).value();
  }
  size_t send_all(size_t bytes, bool more = false) {
    size_t count = 0;
    while (count < 1'000'000 && send(bytes, more)) ++count;
    settle();
    return count;
  }
  size_t take(size_t count) { return take_items(count).size(); }
  std::vector<Item> take_items(size_t count) {
    std::vector<Item> items;
    world.server.session->streams().take(requests.back()->stream(), count, items);
    settle();
    return items;
  }

  World world;
  std::vector<ServerCallRef> requests;
  ClientCallRef call;
  int calls_done = 0;
};

}  // namespace rrpc::rpc
