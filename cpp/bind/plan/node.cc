#include "bind/plan/node.h"

#include <algorithm>
#include <array>
#include <utility>

#include "bind/plan/python.h"

namespace rrpc::bind {

void leave_to_python() {
  if (PyErr_Occurred() == nullptr) return;
  if (PyErr_ExceptionMatches(PyExc_Exception) == 0) throw pybind11::error_already_set();
  PyErr_Clear();
}

void leave_refusal_to_python() {
  if (PyErr_Occurred() == nullptr) return;
  if (PyErr_ExceptionMatches(PyExc_TypeError) == 0 && PyErr_ExceptionMatches(PyExc_ValueError) == 0)
    throw pybind11::error_already_set();
  PyErr_Clear();
}

}  // namespace rrpc::bind

namespace rrpc::bind::plan {
namespace {

struct Name {
  std::string_view text;
  Kind kind;
};

constexpr std::array kNames{
    Name{"none", Kind::kNone},
    Name{"bool", Kind::kBool},
    Name{"int", Kind::kInt},
    Name{"float", Kind::kFloat},
    Name{"f32", Kind::kFloat32},
    Name{"str", Kind::kStr},
    Name{"bytes", Kind::kBytes},
    Name{"list", Kind::kList},
    Name{"dict", Kind::kDict},
    Name{"tuple", Kind::kTuple},
    Name{"tuple of", Kind::kTupleOf},
    Name{"set", Kind::kSet},
    Name{"frozenset", Kind::kFrozenSet},
    Name{"named tuple", Kind::kNamedTuple},
    Name{"record", Kind::kRecord},
    Name{"array", Kind::kArray},
    Name{"enum", Kind::kEnum},
    Name{"literal", Kind::kLiteral},
    Name{"complex", Kind::kComplex},
    Name{"text", Kind::kText},
    Name{"union", Kind::kUnion},
    Name{"any", Kind::kAny},
    Name{"python", Kind::kPython},
};

void compile_inner(Node& node, const py::tuple& description, size_t from, const std::vector<std::string>& names) {
  for (size_t i = from; i < description.size(); ++i) {
    node.inner.push_back(compile(description[i], names));
    node.hands_over = node.hands_over || node.inner.back().hands_over;
  }
}

int slot_of(py::handle name, const std::vector<std::string>& names) {
  const auto found = std::find(names.begin(), names.end(), name.cast<std::string>());
  if (found == names.end()) throw py::value_error("a dimension of another name");
  return static_cast<int>(found - names.begin());
}

// Of sizes, names, and None for any size.
std::vector<int64_t> compile_shape(py::handle dims, const std::vector<std::string>& names) {
  std::vector<int64_t> shape;
  for (const py::handle dim : dims) {
    if (dim.is_none())
      shape.push_back(kAnySize);
    else
      shape.push_back(py::isinstance<py::str>(dim) ? -2 - slot_of(dim, names) : dim.cast<int64_t>());
  }
  return shape;
}

}  // namespace

Node compile(py::handle given, const std::vector<std::string>& names) {
  const auto description = given.cast<py::tuple>();
  const auto name = description[0].cast<std::string>();
  if (name == "optional") {
    Node node = compile(description[1], names);
    node.optional = true;
    return node;
  }
  if (name == "borrowed") {  // class, description
    Node node = compile(description[2], names);
    if (node.kind != Kind::kArray) throw py::value_error("only an array is borrowed");
    node.lend = description[1];
    return node;
  }
  const auto* found = std::find_if(kNames.begin(), kNames.end(), [&](const Name& known) { return known.text == name; });
  if (found == kNames.end()) throw py::value_error("there is no node called " + name);
  Node node;
  node.kind = found->kind;
  switch (node.kind) {
    case Kind::kInt:
      node.least = description[1].cast<int64_t>();
      node.most = description[2].cast<uint64_t>();
      if (description.size() > 3) node.slot = slot_of(description[3], names);
      break;
    case Kind::kList:
    case Kind::kDict:
    case Kind::kTuple:
    case Kind::kTupleOf:
    case Kind::kSet:
    case Kind::kFrozenSet:
    case Kind::kUnion:
      compile_inner(node, description, 1, names);
      break;
    case Kind::kRecord:  // class, name, (field, ...), description, ...
      node.type = description[1];
      node.mark = description[2].cast<std::string>();
      node.names = description[3].cast<py::tuple>();
      compile_inner(node, description, 4, names);
      if (node.names.size() != node.inner.size()) throw py::value_error("a record has a description for each field");
      break;
    case Kind::kNamedTuple:
      node.type = description[1];
      compile_inner(node, description, 2, names);
      break;
    case Kind::kEnum:
    case Kind::kLiteral:
      node.type = description[1];
      node.members = description[2].cast<py::dict>();
      if (node.kind == Kind::kEnum)
        node.pack = py::reinterpret_steal<py::object>(PyUnicode_InternFromString("_value_"));
      break;
    case Kind::kAny:
      node.type = description[1];
      node.dtypes = std::make_shared<Dtypes>();
      break;
    case Kind::kArray:
      node.type = description[1];
      node.dtypes = std::make_shared<Dtypes>();
      node.shaped = description.size() > 2;
      if (node.shaped) node.shape = compile_shape(description[2], names);
      break;
    case Kind::kText:  // class, extension code, function to the text, function from it
      node.type = description[1];
      node.code = description[2].cast<int8_t>();
      node.pack = description[3];
      node.read = description[4];
      break;
    case Kind::kPython:
      node.pack = description[1];
      node.read = description[2];
      node.hands_over = true;
      break;
    default:
      break;
  }
  const bool of_one = node.kind == Kind::kList || node.kind == Kind::kTupleOf || node.kind == Kind::kSet ||
                      node.kind == Kind::kFrozenSet;
  const size_t needed = of_one ? 1 : node.kind == Kind::kDict ? 2 : node.inner.size();
  if (node.inner.size() != needed) throw py::value_error("a " + name + " is of another number of types");
  return node;
}

#ifndef RRPC_COMPILED_PLANS  // without msgpack-cxx: Python does it all
bool pack_list(const std::vector<Node>&, PyObject* const*, Packed&, Sizes&) { return false; }
bool pack_value(const Node&, PyObject*, Packed&, Sizes&) { return false; }
bool read_list(const std::vector<Node>&, std::string_view, py::handle, Values&, Sizes&) { return false; }
py::object read_value(const Node&, std::string_view, py::handle, Sizes&) { return {}; }
bool available() { return false; }
#else
bool available() { return true; }
#endif

}  // namespace rrpc::bind::plan
