#include <cmath>
#include <cstring>
#include <utility>

#include "base/hash_probes.h"
#include "base/msgpack_scan.h"
#include "bind/plan/arrays.h"
#include "bind/plan/node.h"
#include "bind/plan/parsing.h"
#include "bind/plan/python.h"
#include "bind/plan/python_nodes.h"
#include "bind/plan/threads.h"
#include "bind/plan/wire.h"

namespace rrpc::bind::plan {
namespace {

PyObject* unicode_of(std::string_view utf8) {
  return PyUnicode_DecodeUTF8(utf8.data(), static_cast<Py_ssize_t>(utf8.size()), nullptr);
}

// Builds values as their bytes come by. Each function gives whether that is what the node expects; the first that isn't
// ends it, and Python takes the payload from its beginning.
class Reading {
 public:
  // Puts the values behind each other into `values`, which is empty.
  Reading(const std::vector<Node>* list, const Node* single, py::handle blocks, Values& values, Sizes& sizes)
      : root_list_(list), single_(single), blocks_(blocks), sizes_(sizes), values_(values) {
    if (single != nullptr) hands_over_ = single->hands_over;
    if (list != nullptr)
      for (const Node& node : *list) hands_over_ = hands_over_ || node.hands_over;
  }
  void set_marked(bool marked) { marked_ = marked; }

  // Whether the value that comes next, whose first byte this is, belongs to a node that Python reads.
  bool takes_whole(uint8_t first) const {
    if (!hands_over_) return false;
    const Node* const node = expected();
    return node != nullptr && node->kind == Kind::kPython && !(node->optional && first == kNil);
  }
  bool visit_whole(std::string_view bytes) {
    return put_or_leave(read_in_python(*expected(), bytes, marked_, blocks_, blocks_taken_));
  }

  bool visit_nil() {
    const Node* const node = expected();
    return node != nullptr && (node->optional || fit(*node, Kind::kNone) != nullptr) && put(Py_NewRef(Py_None));
  }
  bool visit_bool(bool value) { return put_as(Kind::kBool, value ? Py_True : Py_False); }
  bool visit_unsigned(uint64_t value) {
    const Node* const node = fitting(Kind::kInt);
    if (node == nullptr || value > node->most) return false;
    if (node->least > 0 && value < static_cast<uint64_t>(node->least)) return false;
    if (node->slot >= 0 && (value > INT64_MAX || !agrees(*node, static_cast<int64_t>(value)))) return false;
    return put_as(*node, PyLong_FromUnsignedLongLong(value));
  }
  bool visit_signed(int64_t value) {
    if (value >= 0) return visit_unsigned(static_cast<uint64_t>(value));
    const Node* const node = fitting(Kind::kInt);
    if (node == nullptr || value < node->least) return false;
    return (node->slot < 0 || agrees(*node, value)) && put_as(*node, PyLong_FromLongLong(value));
  }
  bool visit_float(double value) {
    const Node* const node = fitting(Kind::kFloat);
    if (node == nullptr) return false;
    if (node->kind == Kind::kFloat32 && std::isfinite(value) && std::abs(value) >= kFloat32Overflows) return false;
    return put(PyFloat_FromDouble(value));
  }
  bool visit_str(std::string_view text) {
    if (!frames_.empty() && frames_.back().at_name()) return name(text);
    const Node* const node = fitting(Kind::kStr);
    return node != nullptr && put_as(*node, unicode_of(text));
  }
  bool visit_bin(std::string_view bytes) {
    return fitting(Kind::kBytes) != nullptr &&
           put(PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size())));
  }
  bool visit_ext(int8_t code, std::string_view body) {
    if (!frames_.empty() && (frames_.back().at_mark || is_first_of_any())) {
      if (frames_.back().at_mark || (code >= kTupleMark && code <= kRecordMark)) return mark(code, body);
    }
    if (code == kComplexExt) return fitting(Kind::kComplex) != nullptr && complex(body);
    if (const Node* const node = fitting_text(code)) return text(*node, body);
    const Node* const node = fitting(Kind::kArray);
    if (node == nullptr) return false;
    if (code == kArrayExt) return put(inline_array(*node, body, sizes_).release().ptr());
    return code == kBulkArrayExt && put(bulk(*node, body).release().ptr());
  }

  bool start_list(uint64_t count) {
    if (root_list_ != nullptr && frames_.empty()) {
      frames_.push_back({.node = nullptr, .list = root_list_});
      return count == root_list_->size();
    }
    if (const Node* const list = fitting(Kind::kList)) {
      frames_.push_back({.node = list, .first = values_.size()});
      return true;
    }
    const Node* const node = fitting_marked();
    if (node == nullptr || !marked_) return false;
    frames_.push_back({.node = node, .first = values_.size(), .at_mark = true});
    if (node->kind == Kind::kRecord) return count == 2;
    return node->kind == Kind::kTuple || node->kind == Kind::kNamedTuple ? count == node->inner.size() + 1 : true;
  }
  bool end_list() {
    const Frame frame = frames_.back();
    if (frame.node == nullptr) return true;  // of the root: its values stay where they are
    if (frame.at_mark) return false;
    frames_.pop_back();
    switch (frame.node->kind) {
      case Kind::kList:
        return list(frame);
      case Kind::kTuple:
      case Kind::kTupleOf:
        return tuple(frame);
      case Kind::kSet:
      case Kind::kFrozenSet:
        return set(frame);
      case Kind::kNamedTuple:
        return named_tuple(frame);
      case Kind::kAny:
        return frame.is_tuple ? tuple(frame) : list(frame);
      default:
        return frame.had_map;  // of a record, which is made already
    }
  }
  bool start_map(uint64_t count) {
    if (!frames_.empty() && frames_.back().awaits_map()) {
      frames_.back().had_map = true;
      const Node* const record = frames_.back().node;
      frames_.push_back({.node = record, .first = values_.size(), .is_fields = true});
      return count == record->inner.size();
    }
    const Node* const node = fitting(Kind::kDict);
    if (node == nullptr) return false;
    frames_.push_back({.node = node, .first = values_.size(), .is_map = true});
    return true;
  }
  void start_key() { frames_.back().at_key = true; }
  void end_key() { frames_.back().at_key = false; }
  bool end_map() {
    const Frame frame = frames_.back();
    frames_.pop_back();
    return frame.is_fields ? record(frame) : dict(frame);
  }

 private:
  // A list, map or marked list that is being read; its values are those from `first` on.
  struct Frame {
    const Node* node = nullptr;
    const std::vector<Node>* list = nullptr;  // of the root: the arguments
    size_t first = 0;
    bool at_mark = false;  // a mark is due
    bool at_key = false;
    bool is_map = false;
    bool is_tuple = false;   // of Any
    bool is_fields = false;  // the map of a record
    bool had_map = false;    // a record's list, behind its map
    bool at_name() const { return is_fields && at_key; }
    bool awaits_map() const {
      return node != nullptr && node->kind == Kind::kRecord && !is_fields && !at_mark && !had_map;
    }
  };

  // The node of the value that comes next.
  [[gnu::always_inline]] inline const Node* expected() const {
    if (frames_.empty()) return single_;
    const Frame& frame = frames_.back();
    const size_t at = values_.size() - frame.first;
    if (frame.list != nullptr) return at < frame.list->size() ? &(*frame.list)[at] : nullptr;
    const std::vector<Node>& inner = frame.node->inner;
    switch (frame.node->kind) {
      case Kind::kAny:
        return frame.node;
      case Kind::kList:
        return inner.data();
      case Kind::kTupleOf:
      case Kind::kSet:
      case Kind::kFrozenSet:
        return frame.at_mark ? nullptr : inner.data();
      case Kind::kDict:
        return &inner[frame.at_key ? 0 : 1];
      case Kind::kTuple:
      case Kind::kNamedTuple:
        return frame.at_mark || at >= inner.size() ? nullptr : &inner[at];
      case Kind::kRecord:
        return !frame.is_fields || frame.at_key || at >= inner.size() ? nullptr : &inner[at];
      default:
        return nullptr;
    }
  }

  // The node itself, or the alternative of a union, that takes values of a kind on the wire; null if there is none.
  static const Node* fit(const Node& node, Kind wire) {
    switch (node.kind) {
      case Kind::kAny:
        return &node;
      case Kind::kFloat32:
        return wire == Kind::kFloat ? &node : nullptr;
      case Kind::kEnum:
      case Kind::kLiteral:  // which value it is, put_as() looks up
        return wire == Kind::kInt || wire == Kind::kStr || (wire == Kind::kBool && node.kind == Kind::kLiteral)
                   ? &node
                   : nullptr;
      case Kind::kUnion:
        for (const Node& inner : node.inner)
          if (const Node* const found = fit(inner, wire)) return found;
        return nullptr;
      default:
        return node.kind == wire ? &node : nullptr;
    }
  }
  const Node* fitting(Kind wire) const {
    const Node* const node = expected();
    return node == nullptr || node->kind == wire ? node : fit(*node, wire);
  }
  static bool stands_in_marked_list(const Node& node) {
    switch (node.kind) {
      case Kind::kTuple:
      case Kind::kTupleOf:
      case Kind::kSet:
      case Kind::kFrozenSet:
      case Kind::kNamedTuple:
      case Kind::kRecord:
        return true;
      default:
        return false;
    }
  }
  // The node itself, or the alternative of a union, of which this holds; null if there is none.
  template <typename Holds>
  const Node* found(Holds holds) const {
    const Node* const node = expected();
    if (node == nullptr || node->kind != Kind::kUnion) return node != nullptr && holds(*node) ? node : nullptr;
    for (const Node& inner : node->inner)
      if (holds(inner)) return &inner;
    return nullptr;
  }
  const Node* fitting_marked() const { return found(stands_in_marked_list); }
  // The one whose values are sent as texts in extensions of this code.
  const Node* fitting_text(int8_t code) const {
    return found([code](const Node& node) { return node.kind == Kind::kText && node.code == code; });
  }
  // The first element of a list of Any, which may be a mark.
  bool is_first_of_any() const {
    const Frame& frame = frames_.back();
    return marked_ && frame.node != nullptr && frame.node->kind == Kind::kAny && !frame.is_map && !frame.is_tuple &&
           values_.size() == frame.first;
  }

  bool agrees(const Node& node, int64_t size) { return sizes_.agrees(static_cast<size_t>(node.slot), size); }

  // Takes over the reference; null is an exception.
  bool put(PyObject* value) {
    if (value == nullptr) {
      leave_refusal_to_python();
      return false;
    }
    values_.push_back(py::reinterpret_steal<py::object>(value));
    return true;
  }

  // The same where failures are no exceptions any more.
  bool put_or_leave(py::object value) {
    if (!value) return false;
    values_.push_back(std::move(value));
    return true;
  }

  // A value that an enum or a literal may have to look up. Takes over the reference; null is an exception.
  bool put_as(const Node& node, PyObject* value) {
    if (value == nullptr || (node.kind != Kind::kEnum && node.kind != Kind::kLiteral)) return put(value);
    const auto held = py::reinterpret_steal<py::object>(value);
    py::object known = value_in(node.members.ptr(), value);
    if (!known || (node.kind == Kind::kLiteral && Py_TYPE(known.ptr()) != Py_TYPE(value))) return false;
    return put(known.release().ptr());
  }
  bool put_as(Kind wire, PyObject* borrowed) {
    const Node* const node = fitting(wire);
    return node != nullptr && put_as(*node, Py_NewRef(borrowed));
  }

  bool mark(int8_t code, std::string_view body) {
    Frame& frame = frames_.back();
    frame.at_mark = false;
    if (frame.node->kind == Kind::kAny) frame.is_tuple = true;
    if (frame.node->kind == Kind::kRecord) return code == kRecordMark && body == frame.node->mark;
    return code == mark_of(frame.node->kind) && body.empty();
  }

  // A record's fields come in the order of its class, or Python sorts them out.
  bool name(std::string_view text) {
    const Frame& frame = frames_.back();
    const size_t at = values_.size() - frame.first;
    if (at >= frame.node->inner.size()) return false;
    Py_ssize_t length = 0;
    const char* const known = PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(frame.node->names.ptr(), at), &length);
    return known != nullptr && text == std::string_view(known, static_cast<size_t>(length));
  }

  py::object bulk(const Node& node, std::string_view body) {
    uint32_t index = 0;
    if (body.size() < sizeof index || blocks_.is_none()) return {};
    std::memcpy(&index, body.data(), sizeof index);
    // In the order in which they were packed, each once: two arrays in one memory would see each other's writes.
    if (index != blocks_taken_) return {};
    const py::object block = item_of(blocks_.ptr(), static_cast<Py_ssize_t>(index));
    if (!block) return {};
    ++blocks_taken_;
    return block.is_none() ? py::object() : bulk_array(node, body.substr(sizeof index), block, sizes_);
  }

  // Drops the frame's values, and puts what is made of them in their place.
  bool replace(const Frame& frame, PyObject* value) {
    values_.resize(frame.first);
    return put(value);
  }
  std::vector<PyObject*> borrowed(const Frame& frame) const {
    std::vector<PyObject*> values;
    for (size_t i = frame.first; i < values_.size(); ++i) values.push_back(values_[i].ptr());
    return values;
  }
  bool list(const Frame& frame) {
    PyObject* const made = PyList_New(static_cast<Py_ssize_t>(values_.size() - frame.first));
    for (size_t i = frame.first; made != nullptr && i < values_.size(); ++i)
      PyList_SET_ITEM(made, static_cast<Py_ssize_t>(i - frame.first), values_[i].release().ptr());
    return replace(frame, made);
  }
  bool tuple(const Frame& frame) {
    PyObject* const made = PyTuple_New(static_cast<Py_ssize_t>(values_.size() - frame.first));
    for (size_t i = frame.first; made != nullptr && i < values_.size(); ++i)
      PyTuple_SET_ITEM(made, static_cast<Py_ssize_t>(i - frame.first), values_[i].release().ptr());
    return replace(frame, made);
  }
  // Made of all items at once, as Python's decoder makes it: the order in which it is gone through is the same.
  bool set(const Frame& frame) {
    if (values_.size() - frame.first > kKeysUnchecked && collide(frame)) return false;
    const bool frozen = frame.node->kind == Kind::kFrozenSet;
    if (!list(frame)) return false;
    const py::object items = std::move(values_.back());
    values_.pop_back();
    return put(call_python([&] { return frozen ? PyFrozenSet_New(items.ptr()) : PySet_New(items.ptr()); }));
  }
  // Whether the hashes were chosen to be slow; so if there is one without a hash, which Python tells.
  bool collide(const Frame& frame) const {
    std::vector<int64_t> hashes;
    for (size_t i = frame.first; i < values_.size(); ++i) {
      hashes.push_back(call_python([&] { return PyObject_Hash(values_[i].ptr()); }));
      if (hashes.back() != -1) continue;
      leave_to_python();
      return true;
    }
    return hashes_collide(hashes);
  }
  bool complex(std::string_view body) {
    double parts[2];
    if (body.size() != sizeof parts) return false;
    std::memcpy(parts, body.data(), sizeof parts);
    return put(PyComplex_FromDoubles(parts[0], parts[1]));
  }
  // Calls the class's own parser of texts, such as datetime.fromisoformat.
  bool text(const Node& node, std::string_view body) {
    const auto given = py::reinterpret_steal<py::object>(unicode_of(body));
    auto made = py::reinterpret_steal<py::object>(
        given ? call_python([&] { return PyObject_CallOneArg(node.read.ptr(), given.ptr()); }) : nullptr);
    if (!made) leave_to_python();
    return put_or_leave(std::move(made));
  }
  bool named_tuple(const Frame& frame) {
    const std::vector<PyObject*> members = borrowed(frame);
    if (members.size() != frame.node->inner.size()) return false;
    PyObject* const type = frame.node->type.ptr();
    return replace(frame,
                   call_python([&] { return PyObject_Vectorcall(type, members.data(), members.size(), nullptr); }));
  }
  bool dict(const Frame& frame) {
    auto made = py::reinterpret_steal<py::object>(PyDict_New());
    for (size_t i = frame.first; made && i < values_.size(); i += 2)
      if (PyDict_SetItem(made.ptr(), values_[i].ptr(), values_[i + 1].ptr()) != 0) made = {};
    return replace(frame, made.release().ptr());
  }
  // Calls the class. What its own checks raise, they raise once more to Python, which tells of it.
  bool record(const Frame& frame) {
    const std::vector<PyObject*> members = borrowed(frame);
    if (members.size() != frame.node->inner.size()) return false;
    const Node& node = *frame.node;
    return replace(
        frame, call_python([&] { return PyObject_Vectorcall(node.type.ptr(), members.data(), 0, node.names.ptr()); }));
  }

  const std::vector<Node>* const root_list_;
  const Node* const single_;
  const py::handle blocks_;
  Sizes& sizes_;
  size_t blocks_taken_ = 0;
  bool marked_ = false;
  bool hands_over_ = false;  // some node is read by Python
  ShortVector<Frame, 6> frames_;
  Values& values_;
};

bool read(Reading& reading, std::string_view payload) {
  const bool marked = !payload.empty() && payload.front() == kMarked;
  if (marked) payload.remove_prefix(1);
  reading.set_marked(marked);
  if (payload.size() > kScanFromBytes) {
    const auto facts = scan_msgpack(as_bytes(payload));
    if (!facts.ok() || facts->keys_to_check) return false;
  }
  return Parser(payload, reading).parse();
}

}  // namespace

bool read_list(const std::vector<Node>& nodes, std::string_view payload, py::handle blocks, Values& values,
               Sizes& sizes) {
  Reading reading(&nodes, nullptr, blocks, values, sizes);
  return read(reading, payload) && values.size() == nodes.size();
}

py::object read_value(const Node& node, std::string_view payload, py::handle blocks, Sizes& sizes) {
  Values values;
  Reading reading(nullptr, &node, blocks, values, sizes);
  if (!read(reading, payload) || values.size() != 1) return {};
  return std::move(values.front());
}

}  // namespace rrpc::bind::plan
