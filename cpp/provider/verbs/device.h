// The two ways to connect as devices. Adapters, regions and completion queues are the same for both.
#pragma once

#include <memory>

#include "provider/provider.h"

namespace rrpc::provider::verbs {

std::unique_ptr<Device> create_cm_device();
std::unique_ptr<Device> create_socket_device();

}  // namespace rrpc::provider::verbs
