#include "provider/verbs/ece.h"

#include <cerrno>

#include "provider/verbs/errors.h"
#include "provider/verbs/library.h"

namespace rrpc::provider::verbs {
namespace {

using EceFunction = int (*)(ibv_qp*, ibv_ece*);  // gives an errno

EceFunction find(const char* name) { return reinterpret_cast<EceFunction>(find_in_library(name)); }

}  // namespace

Result<Ece> query_ece(ibv_qp* queue_pair) {
  static const EceFunction query = find("ibv_query_ece");
  ibv_ece options{};
  const int error = query != nullptr ? query(queue_pair, &options) : EOPNOTSUPP;
  if (error == EOPNOTSUPP) return Ece{};
  if (error != 0) return verbs_error(error, "asking for a queue pair's connection options (ECE)");
  return Ece{.vendor = options.vendor_id, .options = options.options};
}

Status set_ece(ibv_qp* queue_pair, const Ece& own, const Ece& peer) {
  static const EceFunction set = find("ibv_set_ece");
  if (own.vendor == 0) return {};
  ibv_ece options{.vendor_id = own.vendor, .options = own.vendor == peer.vendor ? peer.options : 0, .comp_mask = 0};
  const int error = set != nullptr ? set(queue_pair, &options) : EOPNOTSUPP;
  return error == 0 || error == EOPNOTSUPP ? Status() : verbs_error(error, "setting connection options (ECE)");
}

}  // namespace rrpc::provider::verbs
