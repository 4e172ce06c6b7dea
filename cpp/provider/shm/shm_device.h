// The provider for peers on one host: set up over a Unix socket, messages and bulk through shared memory and
// process_vm_readv. docs: DESIGN "On one host the read is a single copy between the two processes".
#pragma once

#include <memory>

#include "provider/provider.h"

namespace rrpc::provider {

// Addresses: "/abs/path.sock", or a bare name that stands for a socket in the user's own runtime directory.
std::unique_ptr<Device> create_shm_device();

}  // namespace rrpc::provider
