// Where a server's socket lives, and who may be on the other end.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/result.h"

namespace rrpc::provider::shm {

// The path of the socket that an address names, without touching the file system.
Result<std::string> socket_path(const std::string& address);
// Makes and checks the directory where it is ours to make (that of bare names).
Status prepare_directory(const std::string& address, const std::string& path, bool any_user);

struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
};
Result<PeerCredentials> peer_credentials(int socket);

}  // namespace rrpc::provider::shm
