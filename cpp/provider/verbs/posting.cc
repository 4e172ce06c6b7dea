#include "provider/verbs/posting.h"

namespace rrpc::provider::verbs {

PostedReceives post_linked(ibv_qp* queue_pair, std::span<ibv_recv_wr> requests) {
  for (size_t i = 0; i + 1 < requests.size(); ++i) requests[i].next = &requests[i + 1];
  requests.back().next = nullptr;
  ibv_recv_wr* refused = nullptr;
  const int error_number = ibv_post_recv(queue_pair, requests.data(), &refused);
  if (error_number == 0) return {.count = requests.size()};
  // Without a name for the one that was refused the first is meant.
  const bool named = refused >= requests.data() && refused < requests.data() + requests.size();
  return {.count = named ? static_cast<size_t>(refused - requests.data()) : 0, .error_number = error_number};
}

}  // namespace rrpc::provider::verbs
