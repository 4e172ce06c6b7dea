// Memory that one end lets its peer read in place: only where both see the same pages, on one host.
//
// The owner exposes a range with kLend beside kRemoteRead. The peer may READ it, as any range, or borrow() it once: it
// then reads in place for as long as it keeps the BorrowedRange, whatever becomes of the connection. The owner ends the
// exposure with end_lending(), which tells whether the peer has the range; if so, the memory stays as it is until the
// Loan has been returned.
#pragma once

#include <cstddef>

namespace rrpc::provider {

// A range of the peer's memory that this process reads in place. The destructor gives it back, on any thread, without
// waiting, and after the connection's end too. A forked child has a private copy of the bytes.
class BorrowedRange {
 public:
  virtual ~BorrowedRange() = default;
  BorrowedRange(const BorrowedRange&) = delete;
  BorrowedRange& operator=(const BorrowedRange&) = delete;
  std::byte* data() const { return data_; }  // mapped for reading only
  size_t size() const { return size_; }

 protected:
  BorrowedRange(std::byte* data, size_t size) : data_(data), size_(size) {}

 private:
  std::byte* data_;
  size_t size_;
};

// A range of this process's memory that a peer reads in place. Lives as long as its owner wants, whatever becomes of
// the queue pair. Any thread.
class Loan {
 public:
  virtual ~Loan() = default;
  // The peer has given the range back.
  virtual bool returned() const = 0;
  // The peer's process has ended: nobody reads the range any more. Takes a system call.
  virtual bool abandoned() const = 0;
  // Tells loans to one process from those to others.
  virtual const void* borrower() const = 0;
};

}  // namespace rrpc::provider
