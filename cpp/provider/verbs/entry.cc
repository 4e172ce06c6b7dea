// The one symbol of this shared object.
#include <string>

#include "provider/plugin.h"
#include "provider/verbs/adapter.h"
#include "provider/verbs/device.h"

extern "C" __attribute__((visibility("default"))) void rrpc_open_verbs(const char* build,
                                                                       rrpc::provider::VerbsDevices* out,
                                                                       rrpc::Status* why) {
  namespace verbs = rrpc::provider::verbs;
  if (std::string(build) != rrpc::provider::kBuildId) {
    *why = rrpc::failed_precondition("the verbs provider is of another build than the core; install rrpc anew");
    return;
  }
  // With no usable adapter too: describe() says of each why not.
  out->cm = verbs::create_cm_device();
  out->socket = verbs::create_socket_device();
  *why = verbs::Adapters::process().any_usable();
}
