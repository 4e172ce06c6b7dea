// A reliable-connected queue pair: posting, completing, exposing. How it is connected is its Connector's business.
#pragma once

#include <infiniband/verbs.h>

#include <memory>
#include <string>

#include "provider/provider.h"
#include "provider/verbs/connector.h"

namespace rrpc::provider::verbs {

class VerbsCompletionQueue;

class VerbsQueuePair final : public QueuePair {
 public:
  // With queues as deep as `config` asks and the adapter allows (limits() says), in kInit.
  static Result<std::unique_ptr<QueuePair>> create(CompletionQueue& cq, const QueuePairConfig& config,
                                                   std::unique_ptr<Connector> connector);
  // From the thread that watches the adapter's events: fails it with `reason` and moves it to the error state, which
  // wakes whoever sleeps on its completion channel.
  void doom(const Status& reason);
};

}  // namespace rrpc::provider::verbs
