#include "bind/policy.h"

#include <pybind11/stl.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/convert.h"
#include "bind/gil.h"
#include "driver/user_database.h"

namespace rrpc::bind {
namespace {

using driver::Principal;

// As rrpc/_interface/principals.py calls them.
constexpr std::array<std::pair<std::string_view, Principal::Kind>, 8> kKinds = {{
    {"any", Principal::Kind::kAny},
    {"authenticated", Principal::Kind::kAuthenticated},
    {"same-user", Principal::Kind::kSameUser},
    {"uid", Principal::Kind::kUid},
    {"gid", Principal::Kind::kGid},
    {"dns", Principal::Kind::kDns},
    {"uri", Principal::Kind::kUri},
    {"token", Principal::Kind::kToken},
}};

Principal principal_of(py::handle given) {
  const auto [kind, value] = given.cast<std::pair<std::string, py::object>>();
  for (const auto& [name, found] : kKinds) {
    if (name != kind) continue;
    Principal principal;
    principal.kind = found;
    if (py::isinstance<py::int_>(value))
      principal.id = value.cast<uint32_t>();
    else
      principal.name = value.cast<std::string>();
    return principal;
  }
  throw py::value_error("there is no kind of principal " + kind);
}

}  // namespace

driver::Principals principals_of(py::handle given) {
  driver::Principals principals;
  for (const py::handle one : given) principals.push_back(principal_of(one));
  return principals;
}

namespace {

std::shared_ptr<driver::Policy> make_policy(const py::dict& methods, const py::object& rules, bool tokens) {
  auto policy = std::make_shared<driver::Policy>(tokens);
  for (const auto& [name, allowed] : methods) policy->restrict_method(name.cast<std::string>(), principals_of(allowed));
  if (rules.is_none()) return policy;
  policy->deny_by_default();
  for (const py::handle rule : rules) {
    const auto [pattern, allowed] = rule.cast<std::pair<std::string, py::object>>();
    policy->add_rule(pattern, principals_of(allowed));
  }
  return policy;
}

provider::PeerIdentity identity_of(const py::object& process, const py::object& certificate) {
  provider::PeerIdentity identity;
  if (!process.is_none()) {
    const auto [pid, uid, gid] = process.cast<std::tuple<pid_t, uid_t, gid_t>>();
    identity.process = provider::ProcessIdentity{pid, uid, gid};
  }
  if (!certificate.is_none()) {
    using Names = std::vector<std::string>;
    auto [subject, dns_names, uris] = certificate.cast<std::tuple<std::string, Names, Names>>();
    identity.certificate = provider::CertificateIdentity{.subject = std::move(subject),
                                                         .issuer = {},
                                                         .serial = {},
                                                         .dns_names = std::move(dns_names),
                                                         .uris = std::move(uris)};
  }
  return identity;
}

bool permits(const driver::Policy& policy, const std::string& method, const py::object& process,
             const py::object& certificate, const std::string& token) {
  const provider::PeerIdentity caller = identity_of(process, certificate);
  const WithoutGil freed;
  if (caller.process) driver::wait_for_user(caller.process->uid);
  return policy.decide(method, caller, token) == driver::Verdict::kAllowed;
}

// Empty: the host knows no such user. Asks the database where nobody has.
py::str user_name(uid_t uid) {
  std::string name;
  {
    const WithoutGil freed;
    driver::wait_for_user(uid);
    name = driver::user_name(uid);
    (void)driver::ask_about(uid);  // for the next one, where that is old
  }
  return text_of(name);
}

}  // namespace

py::list texts_of(const std::vector<std::string>& texts) {
  py::list list;
  for (const std::string& text : texts) list.append(text_of(text));
  return list;
}

py::tuple tuple_of(const provider::PeerIdentity& identity) {
  py::object process = py::none(), certificate = py::none();
  if (identity.process) process = py::make_tuple(identity.process->pid, identity.process->uid, identity.process->gid);
  if (identity.certificate) {
    const auto& from = *identity.certificate;
    certificate =
        py::make_tuple(text_of(from.subject), py::tuple(texts_of(from.dns_names)), py::tuple(texts_of(from.uris)));
  }
  return py::make_tuple(process, certificate);
}

void register_policy(py::module_& module) {
  py::class_<driver::Policy, std::shared_ptr<driver::Policy>>(module, "Policy")
      .def(py::init(&make_policy), py::arg("methods"), py::arg("rules"), py::arg("tokens"))
      .def("permits", &permits, py::arg("method"), py::arg("process"), py::arg("certificate"), py::arg("token"));
  module.def("user_name", &user_name, py::arg("uid"));
}

}  // namespace rrpc::bind
