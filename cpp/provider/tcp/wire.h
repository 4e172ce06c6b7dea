// The socket of a queue pair, with TLS in between where there is some.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>

#include "provider/tls.h"

namespace rrpc::provider::tcp {

struct Wire {
  int fd = -1;
  TlsChannel* tls = nullptr;

  // As recvmsg and sendmsg of a nonblocking socket that raise no signal; errors stand in error_number.
  TlsChannel::Outcome receive(std::span<iovec> parts) const;
  TlsChannel::Outcome send(std::span<iovec> parts) const;
  // Whether receive() has something to give though the socket may be silent.
  bool has_input() const { return tls != nullptr && tls->has_input(); }
  // Whether bytes that send() took aren't written yet.
  bool has_output() const { return tls != nullptr && tls->has_output(); }
};

}  // namespace rrpc::provider::tcp
