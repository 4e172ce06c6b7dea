#include "provider/tls/channel.h"

#include <openssl/err.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "base/check.h"

namespace rrpc::provider::tls {
namespace {

constexpr size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;  // 16 KiB
constexpr size_t kOutBytesMax = 128 << 10;                 // encrypted at a time, for one system call
constexpr size_t kRecordCost = 1 << 10;
constexpr size_t kReadCostMax = 4 << 20;   // of one read(): as much as the largest that is asked for
constexpr uint64_t kNoticesMax = 64;       // KeyUpdates, tickets, ... of the peer, and one more for each MiB from it
constexpr size_t kOutBytesKept = 4 << 10;  // of a silent connection
// A key encrypts no more than 2^24.5 records (RFC 8446, section 5.5).
constexpr uint64_t kRecordsPerKey = uint64_t{1} << 22;

}  // namespace

// What is still to be sent of the parts, piece by piece.
class Channel::Cursor {
 public:
  explicit Cursor(std::span<const iovec> parts) : parts_(parts) { skip_empty(); }
  bool at_end() const { return part_ == parts_.size(); }
  Bytes piece() const {
    return {static_cast<const std::byte*>(parts_[part_].iov_base) + offset_, parts_[part_].iov_len - offset_};
  }
  void advance(size_t bytes) {
    offset_ += bytes;
    taken_ += bytes;
    if (offset_ == parts_[part_].iov_len) {
      ++part_;
      offset_ = 0;
      skip_empty();
    }
  }
  size_t taken() const { return taken_; }

 private:
  void skip_empty() {
    while (part_ < parts_.size() && parts_[part_].iov_len == 0) ++part_;
  }

  std::span<const iovec> parts_;
  size_t part_ = 0;
  size_t offset_ = 0;
  size_t taken_ = 0;
};

// --- what OpenSSL reads and writes --------------------------------------------------------------------

const BIO_METHOD* Channel::bio_method() {
  static const BioMethod method = [] {
    BioMethod made(BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "rrpc"));
    RRPC_CHECK(made != nullptr, "no memory for a BIO method");
    BIO_meth_set_read(made.get(), receive);
    BIO_meth_set_write(made.get(), collect);
    BIO_meth_set_ctrl(made.get(), control);
    return made;
  }();
  return method.get();
}

int Channel::receive(BIO* bio, char* data, int size) {
  auto* const self = static_cast<Channel*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  if (self->handshaking_) {
    const size_t room = kHandshakeBytesMax - self->handshake_bytes_;
    size = static_cast<int>(std::min<size_t>(static_cast<size_t>(size), room));
    if (size == 0) return 0;
  }
  if (self->notices_ > kNoticesMax + (self->received_bytes_ >> 20)) {
    self->too_many_notices_ = true;
    return 0;
  }
  const ssize_t got = ::recv(self->fd_, data, static_cast<size_t>(size), MSG_DONTWAIT);
  if (got > 0) self->received_bytes_ += static_cast<uint64_t>(got);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    BIO_set_retry_read(bio);
    return -1;
  }
  if (got < 0) self->socket_errno_ = errno;
  if (got == 0) self->socket_ended_ = true;
  if (got > 0 && self->handshaking_) {
    if (self->first_byte_ < 0) self->first_byte_ = static_cast<unsigned char>(data[0]);
    self->handshake_bytes_ += static_cast<size_t>(got);
  }
  return static_cast<int>(got);
}

// OpenSSL works off all the notices that it finds, and each costs a key: a peer could keep the thread busy with them.
void Channel::note_message(int written, int, int content_type, const void*, size_t, SSL* ssl, void*) {
  auto* const self = static_cast<Channel*>(SSL_get_app_data(ssl));
  if (written == 0 && content_type == SSL3_RT_HANDSHAKE && !self->handshaking_) ++self->notices_;
}

int Channel::collect(BIO* bio, const char* data, int size) {
  auto* const self = static_cast<Channel*>(BIO_get_data(bio));
  const Bytes bytes = as_bytes({data, static_cast<size_t>(size)});
  self->out_.insert(self->out_.end(), bytes.begin(), bytes.end());
  return size;
}

long Channel::control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

// False: the socket takes no more just now, or is dead.
bool Channel::flush(int fd, int& error_number) {
  while (has_output()) {
    const ssize_t sent = ::send(fd, out_.data() + out_begin_, out_.size() - out_begin_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      const bool later = errno == EAGAIN || errno == EINTR || errno == ENOBUFS;
      error_number = later ? 0 : errno;
      return false;
    }
    out_begin_ += static_cast<size_t>(sent);
  }
  out_begin_ = 0;
  out_.clear();
  return true;
}

// --- data ---------------------------------------------------------------------------------------------

TlsChannel::Outcome Channel::read(int fd, std::span<const iovec> parts) {
  fd_ = fd;
  Outcome outcome;
  if (!error_.ok()) return {.error_number = EPROTO};
  ERR_clear_error();  // others in this thread may have left some, and OpenSSL would take them for its own
  for (const iovec& part : parts) {
    for (size_t filled = 0; filled < part.iov_len;) {
      size_t got = 0;
      const int result =
          SSL_read_ex(ssl_.get(), static_cast<std::byte*>(part.iov_base) + filled, part.iov_len - filled, &got);
      if (result != 1) {
        const Outcome why = why_nothing_was_read(result);
        return outcome.bytes > 0 ? outcome : why;  // which the next read will find again, or error_ says
      }
      filled += got;
      outcome.bytes += got;
      outcome.cost += std::max(got, kRecordCost);
      if (outcome.cost >= kReadCostMax) return outcome;
    }
  }
  return outcome;
}

TlsChannel::Outcome Channel::why_nothing_was_read(int result) {
  const int kind = SSL_get_error(ssl_.get(), result);
  if (kind == SSL_ERROR_WANT_READ) return {.error_number = EAGAIN};
  if (kind == SSL_ERROR_ZERO_RETURN) return {.end_of_stream = true};
  if (socket_errno_ != 0) {
    ERR_clear_error();
    return {.error_number = socket_errno_};
  }
  if (socket_ended_) {
    ERR_clear_error();
    return {.end_of_stream = true};
  }
  error_ = explain(take_error());
  return {.error_number = EPROTO};
}

TlsChannel::Outcome Channel::write(int fd, std::span<const iovec> parts) {
  fd_ = fd;
  Outcome outcome;
  Cursor cursor(parts);
  if (!error_.ok()) return {.error_number = EPROTO};
  ERR_clear_error();
  while (flush(fd, outcome.error_number) && !cursor.at_end()) {
    while (!cursor.at_end() && out_.size() < kOutBytesMax) {
      Bytes plaintext = cursor.piece();
      if (plaintext.size() >= kRecordBytes) {
        plaintext = plaintext.first(kRecordBytes);
        cursor.advance(kRecordBytes);
      } else {
        // Short parts go into a record together. All channels of a thread share the place where they do.
        static thread_local const std::unique_ptr<std::byte[]> record(new std::byte[kRecordBytes]);
        size_t length = 0;
        while (!cursor.at_end() && length < kRecordBytes) {
          const Bytes piece = cursor.piece().first(std::min(cursor.piece().size(), kRecordBytes - length));
          std::memcpy(record.get() + length, piece.data(), piece.size());
          length += piece.size();
          cursor.advance(piece.size());
        }
        plaintext = {record.get(), length};
      }
      if (!seal(plaintext)) return {.error_number = EPROTO};
    }
  }
  if (!has_output() && out_.capacity() > kOutBytesKept) std::vector<std::byte>().swap(out_);
  outcome.bytes = cursor.taken();
  if (outcome.bytes == 0 && outcome.error_number == 0 && has_output()) outcome.error_number = EAGAIN;
  return outcome;
}

// Into out_, as one record.
bool Channel::seal(Bytes plaintext) {
  if (Status status = roll_key(); !status.ok()) {
    error_ = std::move(status);
    return false;
  }
  size_t written = 0;
  if (SSL_write_ex(ssl_.get(), plaintext.data(), plaintext.size(), &written) == 1 && written == plaintext.size())
    return true;
  error_ = internal_error("TLS: a record can't be encrypted: " + take_error().text);
  return false;
}

Status Channel::roll_key() {
  if (++records_sealed_ % kRecordsPerKey != 0) return {};
  if (SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1) return {};
  return internal_error("TLS: the key can't be renewed: " + take_error().text);
}

std::vector<std::byte> Channel::farewell(Bytes rest) {
  while (error_.ok() && !rest.empty()) {
    const Bytes record = rest.first(std::min(rest.size(), kRecordBytes));
    if (!seal(record)) break;
    rest = rest.subspan(record.size());
  }
  if (error_.ok()) SSL_shutdown(ssl_.get());
  ERR_clear_error();
  out_.erase(out_.begin(), out_.begin() + static_cast<ptrdiff_t>(out_begin_));
  out_begin_ = 0;
  return std::exchange(out_, {});
}

std::string Channel::description() const {
  return std::string(SSL_get_version(ssl_.get())) + " " + SSL_get_cipher_name(ssl_.get());
}

ExportedKey Channel::export_key(std::string_view label) const {
  ExportedKey key{};
  RRPC_CHECK(SSL_export_keying_material(ssl_.get(), reinterpret_cast<unsigned char*>(key.data()), key.size(),
                                        label.data(), label.size(), nullptr, 0, 0) == 1,
             "no key is exported before the handshake is over");
  return key;
}

}  // namespace rrpc::provider::tls
