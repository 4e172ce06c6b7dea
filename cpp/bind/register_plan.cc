// CompiledPlan for Python's own callers: each method gives None where the codec in Python is to do it.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bind/convert.h"
#include "bind/plan/compiled_plan.h"
#include "bind/register.h"

namespace rrpc::bind {
namespace {

using plan::CompiledPlan;

std::shared_ptr<CompiledPlan> make_plan(const py::tuple& arguments, py::handle result,
                                        const std::vector<std::string>& names) {
  if (names.size() > plan::kNamesMax) throw py::value_error("a compiled plan has at most 8 names of dimensions");
  if (arguments.size() > plan::kArgumentsMax) throw py::value_error("a compiled plan has at most 16 arguments");
  auto made = std::make_shared<CompiledPlan>();
  for (const py::handle argument : arguments) made->arguments.push_back(plan::compile(argument, names));
  made->result = plan::compile(result, names);
  made->named = !names.empty();
  return made;
}

py::object to_python(plan::Packed& packed) {
  if (packed.buffers.empty()) return py::make_tuple(bytes_of(as_text(packed.payload.view())), py::none());
  return py::make_tuple(bytes_of(as_text(packed.payload.view())), list_of(packed.buffers));
}

py::object pack_arguments(const CompiledPlan& plan, const py::tuple& values) {
  plan::Packed packed;
  plan::Sizes sizes;
  if (values.size() != plan.arguments.size() ||
      !plan::pack_list(plan.arguments, PySequence_Fast_ITEMS(values.ptr()), packed, sizes))
    return py::none();
  return to_python(packed);
}

py::object pack_result(const CompiledPlan& plan, py::handle value) {
  plan::Packed packed;
  plan::Sizes sizes;
  return plan::pack_value(plan.result, value.ptr(), packed, sizes) ? to_python(packed) : py::object(py::none());
}

py::object read_arguments(const CompiledPlan& plan, const py::bytes& payload, const py::object& blocks) {
  plan::Values values;
  plan::Sizes sizes;
  if (!plan::read_list(plan.arguments, as_text(bytes_view(payload)), blocks, values, sizes)) return py::none();
  return list_of(values);
}

py::object read_result(const CompiledPlan& plan, const py::bytes& payload, const py::object& blocks) {
  plan::Sizes sizes;
  py::object value = plan::read_value(plan.result, as_text(bytes_view(payload)), blocks, sizes);
  return value ? py::make_tuple(std::move(value)) : py::object(py::none());
}

}  // namespace

void register_plan(py::module_& module) {
  module.attr("HAS_COMPILED_PLANS") = plan::available();
  py::class_<CompiledPlan, std::shared_ptr<CompiledPlan>>(module, "CompiledPlan")
      .def(py::init(&make_plan), py::arg("arguments"), py::arg("result"), py::arg("names") = std::vector<std::string>())
      .def("pack_arguments", &pack_arguments, py::arg("values"))
      .def("read_arguments", &read_arguments, py::arg("payload"), py::arg("blocks"))
      .def("pack_result", &pack_result, py::arg("value"))
      .def("read_result", &read_result, py::arg("payload"), py::arg("blocks"));
}

}  // namespace rrpc::bind
