// A method's nodes: what both ends of a call use, made once for a stub or a handler.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <vector>

#include "bind/plan/node.h"

namespace rrpc::bind::plan {

constexpr size_t kArgumentsMax = 16;

struct CompiledPlan {
  std::vector<Node> arguments;
  Node result;
  bool named = false;  // dimensions have names, which arguments and result share
};

}  // namespace rrpc::bind::plan
