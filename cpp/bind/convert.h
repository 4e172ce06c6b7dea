// Python values <-> the core's, and the one place where a Status becomes an exception.
#pragma once

#include <pybind11/pybind11.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "driver/options.h"
#include "endpoint/exposure.h"
#include "endpoint/pool.h"

namespace rrpc::bind {

namespace py = pybind11;

// What an error of a call says beside its status.
struct ErrorFacts {
  std::string_view details = {};
  std::string_view metadata = {};
  bool not_executed = false;
};
// What the factory of set_error_factory() makes of it.
py::object error_of(const Status& status, const ErrorFacts& facts = {});
[[noreturn]] void raise_status(const Status& status, const ErrorFacts& facts = {});
inline void raise_if_error(const Status& status) {
  if (!status.ok()) raise_status(status);
}
void set_error_factory(py::object factory);

// Seconds or None to an absolute deadline.
TimeNs deadline_from(py::handle timeout);
driver::Options options_from(const py::dict& options);
py::dict default_options();

Bytes bytes_view(const py::bytes& value);
py::bytes bytes_of(std::string_view text);
// Some of it may be a peer's: what isn't UTF-8 becomes U+FFFD.
py::str text_of(std::string_view text);

// The buffer of a Lent; null: the object is none.
py::handle lent_buffer(py::handle object);
// Exports the buffer until the returned Buffer goes. That of a Lent is lent.
endpoint::Buffer export_buffer(py::handle object, bool writable);
// The object that export_buffer() was given.
py::object exporter_of(const endpoint::Hold& hold);
std::vector<endpoint::Buffer> export_buffers(py::handle sequence);
std::vector<endpoint::Buffer> export_buffers(const std::vector<py::object>& buffers);
// Moves the values.
py::list list_of(std::span<py::object> values);

// A Block object for each, None for an empty one; None for no blocks at all.
py::object wrap_blocks(std::vector<endpoint::ReceivedBlock>& blocks);
py::object wrap_block(endpoint::ReceivedBlock block);

}  // namespace rrpc::bind
