// Connects a queue pair by hand: the two ends introduce themselves over a TCP socket, which stays open to tell when
// the other has gone.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/anonymous_mapping.h"
#include "provider/verbs/address.h"
#include "provider/verbs/connector.h"
#include "provider/verbs/introduction.h"

namespace rrpc::provider::verbs {

class SocketConnector final : public Connector {
 public:
  // A client's: dials and chooses the adapter. Blocks up to the deadline.
  static Result<std::unique_ptr<Connector>> open(const Address& address, TimeNs deadline);
  // A server's, for a peer that has introduced itself. A peer that can't be served is told why.
  static Result<std::unique_ptr<Connector>> answer(FrameSocket socket, const Introduction& peer,
                                                   const Address& address);
  ~SocketConnector() override;

  Adapter& adapter() override { return *place_.adapter; }
  uint8_t port() const override { return place_.port; }
  Result<ibv_qp*> create_queue_pair(ibv_pd* domain, ibv_qp_init_attr& attributes) override;
  void destroy_queue_pair() override;
  Status start(Bytes private_data, uint32_t read_depth) override;
  void drive() override;
  void completed(const ibv_wc& completion) override;
  void disconnect(const std::string& reason) override;

  Phase phase() const override { return phase_; }
  const Status& error() const override { return error_; }
  Bytes peer_private_data() const override;
  std::string peer_description() const override { return peer_name_ + " on " + place_.adapter->name(); }
  std::string local_description() const override {
    return local_address(socket_.fd()).to_string() + " on " + place_.adapter->name();
  }
  uint32_t read_depth() const override { return initiator_depth_; }
  void append_wait_handles(std::vector<WaitHandle>& out) const override;

 private:
  SocketConnector(FrameSocket socket, Place place, std::string peer_name, bool server)
      : socket_(std::move(socket)), place_(std::move(place)), peer_name_(std::move(peer_name)), server_(server) {}

  void handle(const Frame& frame);
  Status meet(const Introduction& peer);
  Status prepare_check(int access);
  Status read_check();
  void forget_check();
  void end(Status error, const std::string& told);

  FrameSocket socket_;
  const Place place_;
  const std::string peer_name_;
  const bool server_;
  Phase phase_ = Phase::kInit;
  Status error_;
  ibv_pd* domain_ = nullptr;
  ibv_qp* queue_pair_ = nullptr;
  Introduction own_;
  Introduction peer_;
  uint32_t responder_resources_ = 0;
  uint32_t initiator_depth_ = 0;
  AnonymousMapping check_memory_;  // what a client READs to see that the path works, and where it reads it to
  ibv_mr* check_region_ = nullptr;
};

}  // namespace rrpc::provider::verbs
