#include "driver/plugin.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace rrpc::driver {
namespace {

constexpr char kFileName[] = "_verbs.so";
constexpr char kPathVariable[] = "RRPC_VERBS_PLUGIN";

// Beside the extension (or the test program) that has this code in it.
std::string plugin_path() {
  if (const char* given = std::getenv(kPathVariable); given != nullptr && *given != '\0') return given;
  Dl_info here{};
  static const char in_this_object = 0;
  if (dladdr(&in_this_object, &here) == 0 || here.dli_fname == nullptr) return kFileName;
  const std::string object = here.dli_fname;
  const size_t slash = object.rfind('/');
  return (slash == std::string::npos ? "./" : object.substr(0, slash + 1)) + kFileName;
}

Status loading_failed(const std::string& path) {
  const char* text = dlerror();
  const std::string why = text == nullptr ? "dlopen gives no reason" : text;
  for (const char* library : {"libibverbs", "librdmacm", "libnl"}) {
    if (!why.starts_with(library)) continue;
    return unavailable(
        "rdma-core's libraries are not installed (" + why +
        "); Debian and Ubuntu: apt install libibverbs1 librdmacm1 ibverbs-providers; Fedora and RHEL: dnf "
        "install libibverbs librdmacm");
  }
  return unavailable("the verbs provider can't be loaded from " + path + ": " + why);
}

}  // namespace

Status open_verbs(provider::VerbsDevices& out) {
  const std::string path = plugin_path();
  if (access(path.c_str(), F_OK) != 0)
    return unavailable("this build of rrpc has no verbs provider (there is no " + path +
                       "); build it where rdma-core's headers are: apt install libibverbs-dev librdmacm-dev");
  void* object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (object == nullptr) return loading_failed(path);
  const auto entry = reinterpret_cast<provider::VerbsEntry>(dlsym(object, provider::kVerbsEntryName));
  if (entry == nullptr)
    return failed_precondition(path + " is not rrpc's verbs provider (it has no " + provider::kVerbsEntryName +
                               "); install rrpc anew");
  Status why;
  entry(provider::kBuildId, &out, &why);
  return why;
}

}  // namespace rrpc::driver
