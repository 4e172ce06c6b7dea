// errno of a verbs call as a Status that names the cure; statuses of work completions; GIDs as text.
#pragma once

#include <infiniband/verbs.h>

#include <string>
#include <string_view>

#include "base/status.h"
#include "provider/provider.h"

namespace rrpc::provider::verbs {

// ENOMEM with a low RLIMIT_MEMLOCK names the limit and how to raise it; ENOSYS and EOPNOTSUPP say that this machine has
// no RDMA; EPERM and EACCES name /dev/infiniband.
Status verbs_error(int error_number, std::string_view what);
WcStatus wc_status(ibv_wc_status status);
// As an IPv6 address is written.
std::string gid_text(const ibv_gid& gid);
// One line about RLIMIT_MEMLOCK when it is lower than `needed_bytes` and binds this process (no CAP_IPC_LOCK); else OK.
Status check_memlock(size_t needed_bytes);

}  // namespace rrpc::provider::verbs
