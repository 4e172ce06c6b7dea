// Nodes of types that the core has no node for: Python packs and reads their values, everything around them stays here.
//
// Their functions are those of rrpc/_interface/handed_over.py: pack(value, buffers before it) returns the bytes, as a
// payload of their own, or (bytes, list of buffers); read(such bytes, blocks, blocks taken before) returns
// (value, blocks taken). Both return None for what Python is to do as a whole, with all else of the message.
#pragma once

#include <string_view>

#include "bind/plan/node.h"

namespace rrpc::bind::plan {

// Appends what Python packs; `marked` becomes true where the bytes have marked lists. False: left to Python.
bool pack_in_python(const Node& node, PyObject* value, Packed& packed, bool& marked);

// Reads one value's bytes. Null: left to Python. Counts the blocks that it took, which follow each other.
py::object read_in_python(const Node& node, std::string_view bytes, bool marked, py::handle blocks,
                          size_t& blocks_taken);

}  // namespace rrpc::bind::plan
