// For tests: counts what this process posts to its adapters, in the place of their own function, which then does it, or
// has them refuse some.
#pragma once

#include <dlfcn.h>
#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <map>
#include <utility>

namespace rrpc::provider::verbs {

// Of all adapters that librdmacm has opened, whose contexts the provider uses too, while it lives. One at a time, made
// and ended while nothing is posted.
class PostedRequests {
 public:
  PostedRequests() {
    for (std::atomic<int>& of_opcode : counts()) of_opcode = 0;
    void* const library = dlopen("librdmacm.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) return;
    using GetDevices = ibv_context** (*)(int*);
    const auto get_devices = reinterpret_cast<GetDevices>(dlsym(library, "rdma_get_devices"));
    int count = 0;
    ibv_context** const contexts = get_devices(&count);
    for (int i = 0; i < count; ++i) own()[contexts[i]] = contexts[i]->ops.post_send;
    for (int i = 0; i < count; ++i) contexts[i]->ops.post_send = &count_and_post;
    reinterpret_cast<void (*)(ibv_context**)>(dlsym(library, "rdma_free_devices"))(contexts);  // the list alone
    dlclose(library);
  }
  ~PostedRequests() {
    for (const auto& [context, post_send] : own()) context->ops.post_send = post_send;
  }
  PostedRequests(const PostedRequests&) = delete;
  PostedRequests& operator=(const PostedRequests&) = delete;

  int binds() const { return counts()[IBV_WR_BIND_MW]; }
  int local_invalidations() const { return counts()[IBV_WR_LOCAL_INV]; }
  int sends_with_invalidate() const { return counts()[IBV_WR_SEND_WITH_INV]; }
  int reads() const { return counts()[IBV_WR_RDMA_READ]; }

  // The next call takes so many of its requests, and refuses the one after them.
  static void refuse_after(int count) { taken_of_next() = count; }
  // The next call takes all, and says that the queue pair isn't connected, as Soft-iWARP's library does.
  static void take_and_complain() { taken_of_next() = kAllAndComplain; }

 private:
  using PostSend = int (*)(ibv_qp*, ibv_send_wr*, ibv_send_wr**);
  static constexpr int kAll = -1;
  static constexpr int kAllAndComplain = -2;

  static int& taken_of_next() {
    static int count = kAll;
    return count;
  }

  static std::map<ibv_context*, PostSend>& own() {
    static std::map<ibv_context*, PostSend> functions;
    return functions;
  }
  static std::array<std::atomic<int>, 32>& counts() {
    static std::array<std::atomic<int>, 32> by_opcode;
    return by_opcode;
  }
  static int count_and_post(ibv_qp* queue_pair, ibv_send_wr* first, ibv_send_wr** refused) {
    for (const ibv_send_wr* request = first; request != nullptr; request = request->next)
      ++counts().at(request->opcode);
    const PostSend post = own().at(queue_pair->context);
    const int taken = std::exchange(taken_of_next(), kAll);
    if (taken == kAll) return post(queue_pair, first, refused);
    if (taken == kAllAndComplain) return post(queue_pair, first, refused), *refused = nullptr, ENOTCONN;
    ibv_send_wr* last = first;
    for (int i = 1; i < taken; ++i) last = last->next;
    ibv_send_wr* const rest = std::exchange(last->next, nullptr);
    (void)post(queue_pair, first, refused);
    *refused = last->next = rest;
    return EINVAL;
  }
};

}  // namespace rrpc::provider::verbs
