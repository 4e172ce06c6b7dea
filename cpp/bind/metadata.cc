#include "bind/metadata.h"

#include <string_view>

#include "bind/convert.h"
#include "bind/plan/threads.h"

namespace rrpc::bind {
namespace {

PyObject* g_metadata_packer = nullptr;

constexpr size_t kNamesMax = 15;     // as many as msgpack's shortest header of a map can say
constexpr size_t kBytesMax = 65535;  // no more may be sent anyway

void append_byte(std::string& to, size_t byte) { to.push_back(static_cast<char>(byte)); }

// msgpack's str and bin formats: https://github.com/msgpack/msgpack/blob/master/spec.md
void append_sized(std::string& to, size_t byte_size_tag, std::string_view text) {
  if (text.size() <= 0xff) {
    append_byte(to, byte_size_tag);
  } else {
    append_byte(to, byte_size_tag + 1);
    append_byte(to, text.size() >> 8);
  }
  append_byte(to, text.size() & 0xff);
  to.append(text);
}

void append_str(std::string& to, std::string_view text) {
  if (text.size() > 31) return append_sized(to, 0xd9, text);
  append_byte(to, 0xa0 | text.size());
  to.append(text);
}

void append_bin(std::string& to, std::string_view text) { append_sized(to, 0xc4, text); }

bool is_name(std::string_view text) {
  if (text.empty() || text.front() == '.' || text.front() == '-') return false;
  for (const char c : text)
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.')) return false;
  return true;
}

// Empty where the object isn't exactly a str, or has no UTF-8.
std::string_view utf8_of(PyObject* object, bool& good) {
  Py_ssize_t length = 0;
  const char* const text = PyUnicode_CheckExact(object) ? PyUnicode_AsUTF8AndSize(object, &length) : nullptr;
  good = text != nullptr && static_cast<size_t>(length) <= kBytesMax;
  if (text == nullptr) PyErr_Clear();
  return good ? std::string_view(text, static_cast<size_t>(length)) : std::string_view();
}

bool append_value(std::string& to, PyObject* value) {
  if (PyBytes_CheckExact(value)) {
    const std::string_view text(PyBytes_AS_STRING(value), static_cast<size_t>(PyBytes_GET_SIZE(value)));
    if (text.size() <= kBytesMax) append_bin(to, text);
    return text.size() <= kBytesMax;
  }
  bool good = false;
  const std::string_view text = utf8_of(value, good);
  if (good) append_str(to, text);
  return good;
}

// False where it takes more to pack it, or to say why it can't be.
bool pack_plain(PyObject* metadata, std::string& to) {
  if (!PyDict_CheckExact(metadata)) return false;
  const Section section(metadata);
  const auto count = static_cast<size_t>(PyDict_GET_SIZE(metadata));
  if (count > kNamesMax) return false;
  if (count == 0) return true;
  append_byte(to, 0x80 | count);
  PyObject* key = nullptr;
  PyObject* value = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(metadata, &at, &key, &value) != 0;) {
    const auto held = py::reinterpret_borrow<py::object>(value);  // another thread may replace it
    bool good = false;
    const std::string_view name = utf8_of(key, good);
    if (!good || !is_name(name)) return false;
    append_str(to, name);
    if (!append_value(to, value)) return false;
  }
  return true;
}

}  // namespace

void set_metadata_packer(py::object packer) { g_metadata_packer = packer.release().ptr(); }

PackedMetadata::PackedMetadata(py::handle metadata) {
  if (PyBytes_CheckExact(metadata.ptr())) {
    bytes_ = py::reinterpret_borrow<py::object>(metadata);
    return;
  }
  if (pack_plain(metadata.ptr(), packed_)) return;
  if (g_metadata_packer == nullptr) throw py::type_error("metadata must be bytes or a dict of names to str or bytes");
  bytes_ = py::handle(g_metadata_packer)(metadata);
  if (!PyBytes_CheckExact(bytes_.ptr())) throw py::type_error("the packer of metadata must give bytes");
}

Bytes PackedMetadata::view() const {
  return bytes_ ? bytes_view(py::reinterpret_borrow<py::bytes>(bytes_)) : as_bytes(packed_);
}

}  // namespace rrpc::bind
