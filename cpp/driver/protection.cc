#include "driver/protection.h"

#include <algorithm>

#include "base/text.h"

namespace rrpc::driver {

Result<Protection> parse_protection(std::string_view text, const std::string& what) {
  std::string names;
  for (const auto each : {Protection::kNone, Protection::kIdentity, Protection::kSign, Protection::kEncrypt}) {
    if (text == protection_name(each)) return each;
    names.append(names.empty() ? "" : ", ").append(protection_name(each));
  }
  return invalid_argument(what + " is " + quoted(text) + "; it may be " + names);
}

Protection agreed(Protection one, Protection other) {
  return one == Protection::kNone || other == Protection::kNone ? Protection::kNone : std::max(one, other);
}

}  // namespace rrpc::driver
