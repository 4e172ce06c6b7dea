// The one symbol of this shared object.
#include <string>

#include "provider/plugin.h"

extern "C" __attribute__((visibility("default"))) void rrpc_open_verbs(const char* build, rrpc::provider::VerbsDevices*,
                                                                       rrpc::Status* why) {
  if (std::string(build) != rrpc::provider::kBuildId) {
    *why = rrpc::failed_precondition("the verbs provider is of another build than the core; install rrpc anew");
    return;
  }
  *why = rrpc::unavailable("not yet");
}
