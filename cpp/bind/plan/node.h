// A method's annotations, compiled: what packs values and reads them without running Python.
//
// A node takes the values that need no conversion, of exactly its type, and packs the bytes that the codec in Python
// packs for them; it reads what that codec would read, and what the annotation's check would pass as it is. Everything
// else it leaves to Python: other values, conversions, and all that is wrong with a value or with a stranger's bytes,
// so that errors have one text. Of types that have no node here, a node hands each value over to Python and goes on
// behind it. rrpc/_interface/compiled.py makes the descriptions that nodes are compiled from.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/growing_bytes.h"
#include "base/short_vector.h"
#include "bind/plan/threads.h"

namespace rrpc::bind::plan {

namespace py = pybind11;

enum class Kind : uint8_t {
  kNone,
  kBool,
  kInt,
  kFloat,
  kFloat32,
  kStr,
  kBytes,
  kList,
  kDict,
  kTuple,    // of as many items as there are types
  kTupleOf,  // of any number of items of one type
  kSet,
  kFrozenSet,
  kNamedTuple,
  kRecord,
  kArray,
  kEnum,
  kLiteral,
  kComplex,
  kText,   // its values are sent as texts in an extension: dates and times, decimal numbers
  kUnion,  // its alternatives look different on the wire
  kAny,
  kPython  // packed and read by functions of Python, whatever the type is
};

// A dtype that an array's annotation takes, and its name on the wire. Both live for good: numpy's own dtypes do.
struct Dtype {
  PyObject* descr = nullptr;
  std::string wire;
  int64_t item_bytes = 0;
  const Dtype* before = nullptr;  // the one that was added before
};

// The dtypes that a node's check has taken. Any thread looks for one while another adds one.
class Dtypes {
 public:
  // The one for which `is` holds; null if there is none.
  template <typename Is>
  const Dtype* find(Is is) const {
    const Dtype* dtype = last_.load(std::memory_order_acquire);
    while (dtype != nullptr && !is(*dtype)) dtype = dtype->before;
    return dtype;
  }
  // Adds it, unless its object is here; null where there are too many.
  const Dtype* add(py::handle descr, std::string wire, int64_t item_bytes);

 private:
  Latch adding_;
  std::deque<Dtype> all_;
  std::atomic<const Dtype*> last_{nullptr};
};

constexpr int64_t kAnySize = -1;  // of a dimension; from 0 up a size, from -2 down a name: its slot is -2 - it
constexpr size_t kNamesMax = 8;   // of dimensions, in one method

// The sizes of a call's named dimensions: one size wherever a name stands in arguments and result.
class Sizes {
 public:
  Sizes() { known_.fill(kUnknown); }
  // False where the name has another size already.
  bool agrees(size_t slot, int64_t size) {
    if (size < 0) return false;
    int64_t& known = known_[slot];
    if (known == kUnknown) known = size;
    return known == size;
  }

 private:
  static constexpr int64_t kUnknown = -1;
  std::array<int64_t, kNamesMax> known_;
};

struct Node {
  Kind kind = Kind::kNone;
  bool optional = false;  // None is taken too
  int64_t least = INT64_MIN;
  uint64_t most = UINT64_MAX;
  int slot = -1;        // of an int that gives the size of a dimension
  bool shaped = false;  // an array of these dimensions, not of any
  std::vector<int64_t> shape;
  std::vector<Node> inner;  // of a list one, of a dict key and value, of others one for each member or alternative
  int8_t code = 0;          // of a text: its extension's
  bool hands_over = false;  // it is Python's, or one within it is
  py::object type;          // the class; of an array and Any what adopts dtypes, in Python
  py::object pack, read;    // of a text: what makes the text, and the value of it; of Python's: see python_nodes.h;
                            // of an enum `pack` names the attribute that has a member's value
  py::object lend;          // of a borrowed array: the class whose instances mark buffers as lent; others have none
  py::object members;       // of an enum by their values; of a literal itself by itself
  std::string mark;         // of a record: its class's name
  py::tuple names;          // of a record: its fields, interned
  std::shared_ptr<Dtypes> dtypes;  // of an array and Any: those that the check has taken
};

// From (name, ...) as compiled.py describes it; `names` are those of dimensions. Throws ValueError for what isn't one.
Node compile(py::handle description, const std::vector<std::string>& names);

// Whether this build has what packs and reads; else all of it is left to Python.
bool available();

constexpr size_t kPayloadKeptBytes = 16 << 10;  // of a payload's memory, for the next one in its place

using Payload = GrowingBytes<512>;

// A message in the making.
struct Packed {
  Payload payload;
  std::vector<py::object> buffers;  // those of the arrays that leave the message
};

// Packs as many values as there are nodes as a list, or a single value. False: Python is to do it; no exception is set.
bool pack_list(const std::vector<Node>& nodes, PyObject* const* values, Packed& packed, Sizes& sizes);
bool pack_value(const Node& node, PyObject* value, Packed& packed, Sizes& sizes);

// Values that were read.
using Values = ShortVector<py::object, 8>;

// Reads what was packed so. `blocks` is a list of Block and None, or None. Empty where Python is to do it.
bool read_list(const std::vector<Node>& nodes, std::string_view payload, py::handle blocks, Values& values,
               Sizes& sizes);
py::object read_value(const Node& node, std::string_view payload, py::handle blocks, Sizes& sizes);

}  // namespace rrpc::bind::plan
