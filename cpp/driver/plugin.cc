#include "driver/plugin.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>

namespace rrpc::driver {
namespace {

// One shared object of ours, and what to say of it.
struct Plugin {
  const char* file;
  const char* variable;  // of the environment, names another one
  const char* what;
  const char* build_needs;
  const char* install;  // the libraries that it is linked to
  std::array<const char*, 3> libraries;
};

constexpr Plugin kVerbs{
    "_verbs.so",
    "RRPC_VERBS_PLUGIN",
    "verbs provider",
    "rdma-core's headers are: apt install libibverbs-dev librdmacm-dev",
    "rdma-core's libraries are not installed (%s); Debian and Ubuntu: apt install libibverbs1 librdmacm1 "
    "ibverbs-providers; Fedora and RHEL: dnf install libibverbs librdmacm",
    {"libibverbs", "librdmacm", "libnl"}};
constexpr Plugin kTls{"_tls.so",
                      "RRPC_TLS_PLUGIN",
                      "TLS part",
                      "OpenSSL's headers are: apt install libssl-dev",
                      "OpenSSL 3 is not installed (%s); Debian and Ubuntu: apt install libssl3; Fedora and RHEL: dnf "
                      "install openssl-libs",
                      {"libssl", "libcrypto", "libcrypto"}};

// Beside the extension (or the test program) that has this code in it.
std::string path_of(const Plugin& plugin) {
  if (const char* given = std::getenv(plugin.variable); given != nullptr && *given != '\0') return given;
  Dl_info here{};
  static const char in_this_object = 0;
  if (dladdr(&in_this_object, &here) == 0 || here.dli_fname == nullptr) return plugin.file;
  const std::string object = here.dli_fname;
  const size_t slash = object.rfind('/');
  return (slash == std::string::npos ? "./" : object.substr(0, slash + 1)) + plugin.file;
}

Status loading_failed(const Plugin& plugin, const std::string& path) {
  const char* text = dlerror();
  const std::string why = text == nullptr ? "dlopen gives no reason" : text;
  for (const char* library : plugin.libraries) {
    if (!why.starts_with(library)) continue;
    std::string message = plugin.install;
    return unavailable(message.replace(message.find("%s"), 2, why));
  }
  return unavailable(std::string("the ") + plugin.what + " can't be loaded from " + path + ": " + why);
}

// The object stays loaded for good.
Result<void*> load(const Plugin& plugin, const char* entry_name) {
  const std::string path = path_of(plugin);
  if (access(path.c_str(), F_OK) != 0)
    return unavailable(std::string("this build of rrpc has no ") + plugin.what + " (there is no " + path +
                       "); build it where " + plugin.build_needs);
  void* object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (object == nullptr) return loading_failed(plugin, path);
  void* const entry = dlsym(object, entry_name);
  if (entry != nullptr) return entry;
  return failed_precondition(path + " is not rrpc's " + plugin.what + " (it has no " + entry_name +
                             "); install rrpc anew");
}

}  // namespace

Status open_verbs(provider::VerbsDevices& out) {
  RRPC_ASSIGN_OR_RETURN(void* const entry, load(kVerbs, provider::kVerbsEntryName));
  Status why;
  reinterpret_cast<provider::VerbsEntry>(entry)(provider::kBuildId, &out, &why);
  return why;
}

Result<std::shared_ptr<provider::TlsContext>> open_tls(provider::TlsRole role, const provider::TlsOptions& options) {
  RRPC_ASSIGN_OR_RETURN(void* const entry, load(kTls, provider::kTlsEntryName));
  std::shared_ptr<provider::TlsContext> context;
  Status why;
  reinterpret_cast<provider::TlsEntry>(entry)(provider::kBuildId, role, options, &context, &why);
  if (why.ok()) return context;
  return why;
}

Result<std::shared_ptr<provider::CipherFactory>> open_ciphers() {
  RRPC_ASSIGN_OR_RETURN(void* const entry, load(kTls, provider::kCiphersEntryName));
  std::shared_ptr<provider::CipherFactory> ciphers;
  Status why;
  reinterpret_cast<provider::CiphersEntry>(entry)(provider::kBuildId, &ciphers, &why);
  if (why.ok()) return ciphers;
  return why;
}

}  // namespace rrpc::driver
