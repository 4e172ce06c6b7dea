// A method's annotations, compiled: what packs values and reads them without running Python.
//
// A node takes the values that need no conversion, of exactly its type, and packs the bytes that the codec in Python
// packs for them; it reads what that codec would read, and what the annotation's check would pass as it is. Everything
// else it leaves to Python: other values, conversions, and all that is wrong with a value or with a stranger's bytes,
// so that errors have one text. rrpc/_interface/compiled.py makes the descriptions that nodes are compiled from.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace rrpc::bind::plan {

namespace py = pybind11;

enum class Kind : uint8_t { kNone, kBool, kInt, kFloat, kFloat32, kStr, kBytes, kList, kDict, kTuple, kRecord, kArray };

// A dtype that an array's annotation takes, and its name on the wire. Both live for good: numpy's own dtypes do.
struct Dtype {
  PyObject* descr = nullptr;
  std::string wire;
  int64_t item_bytes = 0;
};

struct Node {
  Kind kind = Kind::kNone;
  bool optional = false;  // None is taken too
  int64_t least = INT64_MIN;
  uint64_t most = UINT64_MAX;
  std::vector<Node> inner;  // of a list one, of a dict key and value, of a tuple and a record one for each member
  py::object type;          // of a record; of an array the check, in Python
  std::string mark;         // of a record: its class's name
  py::tuple names;          // of a record: its fields, interned
  mutable std::deque<Dtype> dtypes;  // of an array: those that the check has taken; guarded by the GIL
};

// From (name, ...) as compiled.py describes it. Throws ValueError for a description that isn't one.
Node compile(py::handle description);

// Whether this build has what packs and reads; else all of it is left to Python.
bool available();

// A message in the making.
struct Packed {
  std::string payload;
  std::vector<py::object> buffers;  // those of the arrays that leave the message
};

// Packs `count` values as a list, or without one a single value. False: Python is to do it; no exception is set.
bool pack_list(const std::vector<Node>& nodes, PyObject* const* values, Packed& packed);
bool pack_value(const Node& node, PyObject* value, Packed& packed);

// Reads what was packed so. `blocks` is a list of Block and None, or None. Empty where Python is to do it.
bool read_list(const std::vector<Node>& nodes, std::string_view payload, py::handle blocks,
               std::vector<py::object>& values);
py::object read_value(const Node& node, std::string_view payload, py::handle blocks);

}  // namespace rrpc::bind::plan
