#include "provider/shm/address.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>

namespace rrpc::provider::shm {

namespace {

constexpr size_t kPathBytesMax = sizeof(sockaddr_un::sun_path) - 1;
constexpr size_t kNameBytesMax = 64;

std::string runtime_directory() {
  const char* xdg = std::getenv("XDG_RUNTIME_DIR");
  struct stat info{};
  // After su the variable may still name the other user's.
  if (xdg != nullptr && xdg[0] == '/' && stat(xdg, &info) == 0 && info.st_uid == geteuid())
    return std::string(xdg) + "/rrpc";
  return "/tmp/rrpc-" + std::to_string(geteuid());
}

Status check_name(const std::string& name) {
  const bool allowed = std::ranges::all_of(
      name, [](unsigned char c) { return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-'; });
  if (name.empty()) return invalid_argument("shm address: the name is empty");
  if (name.size() > kNameBytesMax)
    return invalid_argument("shm address: the name is longer than " + std::to_string(kNameBytesMax) + " characters");
  if (!allowed || name.starts_with('.'))
    return invalid_argument("shm address '" + name +
                            "': want an absolute path, or a name of letters, digits, '.', '_' and '-'");
  return {};
}

std::string directory_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

// An error unless the owner is one to trust and nobody else can put a socket there. `consequence` is said of an owner
// who isn't.
Status check_private(const std::string& directory, const struct stat& info, bool trusted,
                     const std::string& consequence) {
  if (!trusted) return permission_denied(directory + " belongs to uid " + std::to_string(info.st_uid) + consequence);
  if ((info.st_mode & 022) != 0) return permission_denied(directory + " is writable by others");
  return {};
}

}  // namespace

bool is_path(const std::string& address) { return address.starts_with('/'); }

Result<std::string> socket_path(const std::string& address) {
  if (!is_path(address)) RRPC_RETURN_IF_ERROR(check_name(address));
  std::string path = is_path(address) ? address : runtime_directory() + "/" + address + ".sock";
  if (path.size() > kPathBytesMax || path.find('\0') != std::string::npos || path.ends_with('/'))
    return invalid_argument("shm address '" + path + "': not a path of 1 to " + std::to_string(kPathBytesMax) +
                            " characters");
  return path;
}

Status prepare_directory(const std::string& address, const std::string& path, bool any_user) {
  if (is_path(address)) return {};
  const std::string directory = directory_of(path);
  const mode_t mode = any_user ? 0755 : 0700;
  if (mkdir(directory.c_str(), mode) != 0 && errno != EEXIST) return Status::from_errno(errno, "making " + directory);
  struct stat info{};
  if (lstat(directory.c_str(), &info) != 0) return Status::from_errno(errno, directory);
  if (!S_ISDIR(info.st_mode)) return failed_precondition(directory + " is not a directory");
  RRPC_RETURN_IF_ERROR(check_private(directory, info, info.st_uid == geteuid(), ""));
  if (any_user && (info.st_mode & 0777) != mode && chmod(directory.c_str(), mode) != 0)
    return Status::from_errno(errno, "opening " + directory + " to other users");
  return {};
}

Status check_directory(const std::string& address, const std::string& path) {
  const std::string directory = directory_of(path);
  struct stat info{};
  if (is_path(address) || lstat(directory.c_str(), &info) != 0) return {};  // connecting says what is wrong
  return check_private(directory, info, info.st_uid == geteuid() || info.st_uid == 0,
                       ", who could answer in the server's place; name the socket's whole path to connect there");
}

}  // namespace rrpc::provider::shm
