// Policies and peers' identities, between Python and the core.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "driver/policy.h"

namespace rrpc::bind {

// Of a list of (kind, number or name).
driver::Principals principals_of(pybind11::handle given);
// (process, certificate): (pid, uid, gid) or None, and (subject, DNS names, URIs) or None.
pybind11::tuple tuple_of(const provider::PeerIdentity& identity);
pybind11::list texts_of(const std::vector<std::string>& texts);
void register_policy(pybind11::module_& module);

}  // namespace rrpc::bind
