// The metadata of a request, given as bytes or as Python's dict of names and values.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "base/bytes.h"

namespace rrpc::bind {

// What packs, or refuses with a clear error, what isn't a plain dict: rrpc.metadata.pack.
void set_metadata_packer(pybind11::object packer);

// Holds the bytes that travel. A plain dict (names as rrpc/metadata.py has them, values str or bytes) is packed
// right here, because a call in Python to do so would cost more than all that metadata costs otherwise.
class PackedMetadata {
 public:
  explicit PackedMetadata(pybind11::handle metadata);
  [[nodiscard]] Bytes view() const;

 private:
  std::string packed_;
  pybind11::object bytes_;  // those that were given, or made by the packer
};

}  // namespace rrpc::bind
