#include "endpoint/counters.h"

namespace rrpc::endpoint {

Counters& counters() {
  static Counters instance;
  return instance;
}

}  // namespace rrpc::endpoint
