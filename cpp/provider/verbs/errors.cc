#include "provider/verbs/errors.h"

#include <arpa/inet.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace rrpc::provider::verbs {

static constexpr char kRaiseMemlock[] =
    "raise it (`ulimit -l unlimited`, systemd LimitMEMLOCK=infinity, docker --ulimit memlock=-1)";

static rlim_t memlock_limit() {
  rlimit limit{};
  return getrlimit(RLIMIT_MEMLOCK, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

static bool may_lock_without_limit() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  if (syscall(SYS_capget, &header, data) != 0) return false;
  return (data[0].effective & (1u << CAP_IPC_LOCK)) != 0;
}

static std::string memlock_text(rlim_t limit) { return std::to_string(limit / 1024) + " KiB"; }

Status verbs_error(int error_number, std::string_view what) {
  const std::string prefix = std::string(what) + ": ";
  const std::string text = std::strerror(error_number);
  switch (error_number) {
    case ENOMEM:
      if (const rlim_t limit = memlock_limit(); limit != RLIM_INFINITY && !may_lock_without_limit()) {
        return resource_exhausted(prefix + text + "; this process may lock only " + memlock_text(limit) +
                                  " of memory (RLIMIT_MEMLOCK): " + kRaiseMemlock);
      }
      return resource_exhausted(prefix + text + "; the adapter or the machine has no room for more");
    case ENOSYS:
    case EOPNOTSUPP:
      return {StatusCode::kUnimplemented, prefix + text + "; the adapter or its driver doesn't have this"};
    case EPERM:
    case EACCES:
      return permission_denied(prefix + text + "; this user needs access to the files in /dev/infiniband");
    case ENODEV:
    case EIO:
      return unavailable(prefix + text + "; the adapter has gone or failed");
    default:
      return Status::from_errno(error_number, what);
  }
}

WcStatus wc_status(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return WcStatus::kSuccess;
    case IBV_WC_LOC_LEN_ERR:
      return WcStatus::kLocalLength;
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
      return WcStatus::kLocalProtection;
    case IBV_WC_WR_FLUSH_ERR:
      return WcStatus::kFlushed;
    case IBV_WC_REM_ACCESS_ERR:
      return WcStatus::kRemoteAccess;
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_OP_ERR:
    case IBV_WC_REM_ABORT_ERR:
      return WcStatus::kRemoteOperation;
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
      return WcStatus::kRetryExceeded;
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return WcStatus::kRnrRetryExceeded;
    default:
      return WcStatus::kFatal;
  }
}

Status check_memlock(size_t needed_bytes) {
  const rlim_t limit = memlock_limit();
  if (limit == RLIM_INFINITY || limit >= needed_bytes || may_lock_without_limit()) return {};
  return resource_exhausted("this process may lock only " + memlock_text(limit) + " of memory (RLIMIT_MEMLOCK), " +
                            memlock_text(needed_bytes) + " are needed: " + kRaiseMemlock);
}

std::string gid_text(const ibv_gid& gid) {
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(AF_INET6, gid.raw, text, sizeof(text));
  return text;
}

}  // namespace rrpc::provider::verbs
