#include "driver/transports.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

namespace rrpc::driver {
namespace {

constexpr char kVariable[] = "RRPC_TRANSPORTS";

}  // namespace

const std::vector<std::string>& all_transports() {
  static const std::vector<std::string> all{"shm", "verbs", "tcp"};
  return all;
}

bool lists(const std::vector<std::string>& transports, const std::string& transport) {
  return std::ranges::find(transports, transport) != transports.end();
}

std::string join(const std::vector<std::string>& items, const std::string& separator) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : separator) + item;
  return text;
}

Result<std::vector<std::string>> parse_transports(const std::string& text, const std::string& what) {
  std::vector<std::string> transports;
  std::istringstream stream(text);
  for (std::string name; std::getline(stream, name, ',');) {
    std::erase(name, ' ');
    transports.push_back(name);
  }
  RRPC_RETURN_IF_ERROR(validate_transports(transports, what));
  return transports;
}

Status validate_transports(const std::vector<std::string>& transports, const std::string& what) {
  std::string wrong;
  if (transports.empty()) wrong = "no transport";
  for (const std::string& name : transports) {
    if (std::ranges::count(transports, name) > 1) wrong = name + " twice";
    if (!lists(all_transports(), name)) wrong = "'" + name + "'";
    if (!wrong.empty()) break;
  }
  if (wrong.empty()) return {};
  return invalid_argument(what + " lists " + wrong + "; it may list, best first, some of " +
                          join(all_transports(), ", "));
}

Result<std::vector<std::string>> default_transports() {
  const char* text = std::getenv(kVariable);
  if (text == nullptr || *text == '\0') return all_transports();
  return parse_transports(text, std::string("the environment's ") + kVariable);
}

}  // namespace rrpc::driver
