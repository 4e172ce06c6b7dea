// numpy's arrays on the wire: what a node of an array packs and reads.
#pragma once

#include <string>
#include <string_view>

#include "bind/plan/node.h"

namespace rrpc::bind::plan {

// An array as an extension: its head and, unless it is bulk, its bytes.
struct ArrayView {
  std::string head;
  const char* bytes = nullptr;
  size_t nbytes = 0;
};

// Has the thread that drops the last reference to the object, and to the memory of an array, free it, whichever thread
// that is. Without it CPython frees them only once the thread that made them runs Python again, which an idle worker
// doesn't: that thread counts its references to itself (PEP 703), and is asked when others drop theirs.
void share_references(PyObject* object);

// False for what isn't a C-contiguous array of exactly numpy's class, of a dtype that the node's check takes and of
// a shape as it is to be.
bool view_array(const Node& node, PyObject* value, ArrayView& view, Sizes& sizes);

// A new array with these bytes behind its head; null where Python is to do it. Borrowed arrays are read-only.
py::object inline_array(const Node& node, std::string_view data, Sizes& sizes);
// One that stands in the block's memory; `data` is its head.
py::object bulk_array(const Node& node, std::string_view data, py::handle block, Sizes& sizes);

}  // namespace rrpc::bind::plan
