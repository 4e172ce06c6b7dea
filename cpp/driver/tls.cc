#include "driver/tls.h"

#include <map>
#include <mutex>
#include <utility>

#include "base/at_fork.h"
#include "driver/plugin.h"
#include "driver/transports.h"

namespace rrpc::driver {
namespace {

constexpr size_t kContextsMax = 64;

// Never destroyed: connections may outlive static destruction.
struct Contexts {
  std::mutex mutex;
  std::map<std::pair<provider::TlsRole, provider::TlsOptions>, std::shared_ptr<provider::TlsContext>> by_options;
};

Contexts& g_contexts = *new Contexts();

// A forked child makes its own: another thread may have been at work on these.
const AtFork kContextsAtFork{[] { new (&g_contexts) Contexts(); }};

}  // namespace

Status choose_tls(Address& address, const Options& options) {
  const bool may_use_rdma = address.is_verbs() || (address.scheme == "rrpc" && lists(options.transports, "verbs"));
  const bool protects_rdma = options.rdma_security != Protection::kNone;
  if (!options.wants_tls() && !address.secure && may_use_rdma && protects_rdma)
    return invalid_argument("rdma_security is '" + std::string(protection_name(options.rdma_security)) + "', and " +
                            address.to_string() + " has no TLS, from which the keys come: give the options of TLS too");
  // What goes over shared memory never leaves the host.
  if (!options.wants_tls() || address.scheme == "shm") return {};
  if (address.is_verbs() && !protects_rdma)
    return invalid_argument("TLS was asked for at " + address.to_string() +
                            ", where rdma_security decides what it protects: it is 'none', and must be identity, "
                            "sign or encrypt");
  address.secure = true;
  return {};
}

Result<std::shared_ptr<provider::TlsContext>> tls_context(const Address& address, provider::TlsRole role,
                                                          const Options& options) {
  if (!address.secure) return std::shared_ptr<provider::TlsContext>();
  Contexts& ours = g_contexts;
  std::lock_guard lock(ours.mutex);
  const auto key = std::make_pair(role, options.files);
  if (const auto it = ours.by_options.find(key); it != ours.by_options.end()) return it->second;
  RRPC_ASSIGN_OR_RETURN(auto context, open_tls(role, options.files));
  if (ours.by_options.size() >= kContextsMax) ours.by_options.clear();  // those in use have other owners
  ours.by_options[key] = context;
  return context;
}

}  // namespace rrpc::driver
