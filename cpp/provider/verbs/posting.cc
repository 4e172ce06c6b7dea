#include "provider/verbs/posting.h"

namespace rrpc::provider::verbs {
namespace {

template <typename Queue>
PostedReceives post(int (*take)(Queue*, ibv_recv_wr*, ibv_recv_wr**), Queue* queue, std::span<ibv_recv_wr> requests) {
  for (size_t i = 0; i + 1 < requests.size(); ++i) requests[i].next = &requests[i + 1];
  requests.back().next = nullptr;
  ibv_recv_wr* refused = nullptr;
  const int error_number = take(queue, requests.data(), &refused);
  if (error_number == 0) return {.count = requests.size()};
  // Without a name for the one that was refused the first is meant.
  const bool named = refused >= requests.data() && refused < requests.data() + requests.size();
  return {.count = named ? static_cast<size_t>(refused - requests.data()) : 0, .error_number = error_number};
}

}  // namespace

PostedReceives post_linked(ibv_qp* queue_pair, std::span<ibv_recv_wr> requests) {
  return post(&ibv_post_recv, queue_pair, requests);
}

PostedReceives post_linked(ibv_srq* shared_receives, std::span<ibv_recv_wr> requests) {
  return post(&ibv_post_srq_recv, shared_receives, requests);
}

}  // namespace rrpc::provider::verbs
