// The files of Unix sockets: what is behind one, and how those of servers that were killed are cleared away.
#pragma once

#include <cstdint>
#include <string>

#include "base/unique_fd.h"

namespace rrpc::provider::shm {

// 0, or errno.
int connect_socket(int socket, const std::string& path);
int bind_socket(int socket, const std::string& path);
// Of a socket's file; 0 where there is none.
uint64_t inode_of(const std::string& path);
// Nothing listens there. Between bind and listen that is true of a live server, too: see lock_sockets().
bool refuses(const std::string& path);

// Whoever binds in a folder of sockets, or clears it, has its lock. Waits for a second at most: nothing where another
// process keeps it for longer.
UniqueFd lock_sockets(const std::string& directory);
// Removes the files in the directory of `own`, a socket bound there, that are no server's any more. Needs the lock.
// At most kClearedMax, so that no start takes long.
constexpr int kClearedMax = 1000;
void clear_dead_sockets(const std::string& own);

}  // namespace rrpc::provider::shm
