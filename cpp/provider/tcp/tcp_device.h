// RDMA's verbs over ordinary TCP sockets: one socket per queue pair, any host, no adapter.
#pragma once

#include <memory>

#include "provider/provider.h"

namespace rrpc::provider {

// Addresses are "host:port" or "[::1]:port"; port 0 to listen on any free one.
std::unique_ptr<Device> create_tcp_device();

}  // namespace rrpc::provider
