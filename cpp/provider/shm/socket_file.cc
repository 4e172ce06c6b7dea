#include "provider/shm/socket_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <unordered_set>

#include "base/clock.h"

namespace rrpc::provider::shm {

namespace {

constexpr TimeNs kLockPatience = kSecond;

sockaddr_un unix_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), std::min(path.size(), sizeof(address.sun_path) - 1));
  return address;
}

// Those of this network namespace. One of another, in a container, answers all the same when it is asked.
std::unordered_set<std::string> bound_paths() {
  std::unordered_set<std::string> paths;
  std::ifstream table("/proc/net/unix");
  for (std::string line; std::getline(table, line);) {
    const size_t path = line.find(" /");
    if (path != std::string::npos) paths.insert(line.substr(path + 1));
  }
  return paths;
}

}  // namespace

int connect_socket(int socket, const std::string& path) {
  const sockaddr_un address = unix_address(path);
  return connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ? 0 : errno;
}

int bind_socket(int socket, const std::string& path) {
  const sockaddr_un address = unix_address(path);
  return bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ? 0 : errno;
}

uint64_t inode_of(const std::string& path) {
  struct stat info{};
  return lstat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode) ? info.st_ino : 0;
}

bool refuses(const std::string& path) {
  const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return probe && connect_socket(probe.get(), path) == ECONNREFUSED;
}

UniqueFd lock_sockets(const std::string& directory) {
  UniqueFd lock(open((directory + "/.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return {};
  const TimeNs end = now_ns() + kLockPatience;
  while (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK || now_ns() > end) return {};
    usleep(1000);
  }
  return lock;
}

void clear_dead_sockets(const std::string& own) {
  const std::string directory = own.substr(0, own.rfind('/') + 1);
  const std::unique_ptr<DIR, int (*)(DIR*)> files(opendir(directory.c_str()), closedir);
  if (!files) return;
  const std::unordered_set<std::string> bound = bound_paths();
  int cleared = 0;
  while (const dirent* file = readdir(files.get())) {
    const std::string path = directory + file->d_name;
    if (!path.ends_with(".sock") || bound.contains(path) || !refuses(path)) continue;
    if (unlink(path.c_str()) == 0 && ++cleared == kClearedMax) return;
  }
}

}  // namespace rrpc::provider::shm
