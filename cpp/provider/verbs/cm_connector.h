// Connects a queue pair by librdmacm.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "provider/verbs/address.h"
#include "provider/verbs/cm_channel.h"
#include "provider/verbs/connector.h"

namespace rrpc::provider::verbs {

class CmConnector final : public Connector {
 public:
  // A client's: resolves the address and the route. Blocks up to the deadline.
  static Result<std::unique_ptr<Connector>> open(const Address& address, TimeNs deadline);
  // A server's, for a CONNECT_REQUEST on `listener`'s channel. What can't be served is rejected, with the reason.
  static Result<std::unique_ptr<Connector>> answer(CmEvent request, const Address& address);
  ~CmConnector() override;

  Adapter& adapter() override { return *adapter_; }
  uint8_t port() const override { return id_->port_num; }
  Result<ibv_qp*> create_queue_pair(ibv_pd* domain, ibv_qp_init_attr& attributes) override;
  void destroy_queue_pair() override;
  Status start(Bytes private_data, uint32_t read_depth) override;
  void drive() override;
  void completed(const ibv_wc&) override {}
  void disconnect(const std::string& reason) override;

  bool unanswered() const override { return phase_ == Phase::kEnded && unanswered_; }
  Phase phase() const override { return phase_; }
  const Status& error() const override { return error_; }
  Bytes peer_private_data() const override { return peer_private_data_; }
  std::string peer_description() const override { return peer_ + " on " + adapter_->name(); }
  std::string local_description() const override;
  uint32_t read_depth() const override { return read_depth_; }
  void append_wait_handles(std::vector<WaitHandle>& out) const override { out.push_back({channel_.fd(), false}); }

 private:
  CmConnector(CmChannel channel, CmId id, bool server)
      : channel_(std::move(channel)), id_(std::move(id)), server_(server) {}

  static Result<std::unique_ptr<Connector>> open_one(const Address& address, SocketAddress target, TimeNs deadline);
  Status resolve(const Address& address, SocketAddress target, TimeNs deadline);
  Status expect(rdma_cm_event_type type, TimeNs deadline);
  rdma_conn_param parameters(Bytes private_data, uint32_t read_depth);
  void handle(const CmEvent& event);
  void established(const CmEvent& event);
  void end(Status error);

  CmChannel channel_;
  CmId id_;  // destroyed before its channel
  // Soft-iWARP's rdma_connect() waits for TCP, for minutes if nothing comes back: so a socket of our own first sees
  // that something does. It stays until all is connected: a server's Soft-iWARP may close its listener for a socket
  // that ends before it was accepted.
  UniqueFd reached_;
  // It takes the TCP port with the number that rdma_cm chose in its own space, which TCP may have given away.
  UniqueFd source_port_;
  const bool server_;
  Adapter* adapter_ = nullptr;
  Phase phase_ = Phase::kInit;
  bool unanswered_ = false;  // of iWARP: no event has told yet what came of rdma_connect()
  Status error_;
  std::string peer_;
  std::vector<std::byte> peer_private_data_;
  uint32_t offered_responder_resources_ = 0;
  uint32_t offered_initiator_depth_ = 0;
  uint32_t read_depth_ = 0;
};

}  // namespace rrpc::provider::verbs
