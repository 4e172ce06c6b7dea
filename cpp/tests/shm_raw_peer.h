// An end of the shm provider that writes its bytes itself, and may write others than it should.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cstring>
#include <string>

#include "provider/shm/control_segment.h"
#include "provider/shm/wire.h"

namespace rrpc::provider::shm {

// A raw end of the socket, with a control segment of its own to lie in.
class RawPeer {
 public:
  explicit RawPeer(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    EXPECT_EQ(::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  // A server: the socket was accepted.
  explicit RawPeer(UniqueFd socket) : socket_(std::move(socket)) {}

  void send(Bytes bytes, int fd = -1) {
    iovec iov{const_cast<std::byte*>(bytes.data()), bytes.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &iov;
    header.msg_iovlen = 1;
    if (fd >= 0) {
      header.msg_control = control;
      header.msg_controllen = sizeof(control);
      cmsghdr* part = CMSG_FIRSTHDR(&header);
      part->cmsg_level = SOL_SOCKET;
      part->cmsg_type = SCM_RIGHTS;
      part->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(part), &fd, sizeof(int));
    }
    EXPECT_EQ(sendmsg(socket_.get(), &header, MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  void send(const Frame& frame, int fd = -1) { send(frame.bytes(), fd); }
  void send_setup() { send(encode_setup(good_setup()), control_.fd()); }
  // The other end's SETUP comes first, with its control segment.
  void adopt_other() {
    std::array<std::byte, kPreambleBytes + kHeaderBytes + sizeof(SetupNotice)> bytes;
    iovec iov{bytes.data(), bytes.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &iov;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    ASSERT_EQ(recvmsg(socket_.get(), &header, 0), static_cast<ssize_t>(bytes.size()));
    const SetupNotice setup = decode_setup(Bytes(bytes).subspan(kPreambleBytes + kHeaderBytes)).value();
    const cmsghdr* const part = CMSG_FIRSTHDR(&header);
    ASSERT_NE(part, nullptr);
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(part), sizeof(int));
    other_ = ControlSegment(SharedMapping::adopt(UniqueFd(fd), setup.segment_bytes, true).value(), setup.ring_entries);
  }
  static SetupNotice good_setup() {
    SetupNotice setup;
    setup.ring_entries = kEntries;
    setup.exposure_count = kExposureCount;
    setup.segment_bytes = ControlSegment::segment_bytes(kEntries);
    return setup;
  }
  int control_fd() const { return control_.fd(); }
  ControlSegment& control() { return control_; }
  ControlSegment& other() { return other_; }

 private:
  static constexpr uint32_t kEntries = 16;
  UniqueFd socket_{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  ControlSegment control_{SharedMapping::create("raw", ControlSegment::segment_bytes(kEntries), true).value(),
                          kEntries};
  ControlSegment other_;
};

}  // namespace rrpc::provider::shm
