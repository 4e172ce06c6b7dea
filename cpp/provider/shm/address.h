// Where a server's socket lives.
#pragma once

#include <string>

#include "base/result.h"

namespace rrpc::provider::shm {

// Else it is a name.
bool is_path(const std::string& address);
// The path of the socket that an address names, without touching the file system.
Result<std::string> socket_path(const std::string& address);
// Makes and checks the directory where it is ours to make (that of bare names).
Status prepare_directory(const std::string& address, const std::string& path, bool any_user);
// PermissionDenied where others could have put the socket of a bare name there.
Status check_directory(const std::string& address, const std::string& path);

}  // namespace rrpc::provider::shm
