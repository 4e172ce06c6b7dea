// What a fabric is told of a connection, with a libibverbs of the test's own: the software adapters are on Ethernet
// alone, and keep no service level.
#include "provider/verbs/bring_up.h"

#include <gtest/gtest.h>

#include <vector>

namespace {

struct Asked {
  ibv_qp_attr attributes;
  int mask;
};
std::vector<Asked> g_asked;

}  // namespace

extern "C" int ibv_modify_qp(ibv_qp*, ibv_qp_attr* attributes, int mask) {
  g_asked.push_back({*attributes, mask});
  return 0;
}

namespace rrpc::provider::verbs {
namespace {

constexpr uint16_t kPeerLid = 7;

Place place_on(uint8_t link_layer, const FabricPolicy& policy) {
  Place place;
  place.port = 1;
  place.port_attributes.link_layer = link_layer;
  place.gid.index = 3;
  place.policy = policy;
  place.partition_index = 2;
  return place;
}

// As the queue pair is told when it becomes ready to receive.
ibv_ah_attr path_of(uint8_t link_layer, const FabricPolicy& policy) {
  g_asked.clear();
  Path path;
  path.peer.lid = kPeerLid;
  path.own.mtu = path.peer.mtu = IBV_MTU_4096;
  EXPECT_TRUE(bring_to_rts(nullptr, place_on(link_layer, policy), path).ok());
  EXPECT_EQ(g_asked.size(), 2u);
  EXPECT_NE(g_asked[0].mask & IBV_QP_AV, 0);
  return g_asked[0].attributes.ah_attr;
}

TEST(BringUp, WithinInfiniBandTheLidIsEnough) {
  const ibv_ah_attr path = path_of(IBV_LINK_LAYER_INFINIBAND, {});
  EXPECT_EQ(path.dlid, kPeerLid);
  EXPECT_EQ(path.is_global, 0);
  EXPECT_EQ(path.sl, 0);
}

TEST(BringUp, AGlobalRouteGoesWithTheGid) {
  const ibv_ah_attr path = path_of(IBV_LINK_LAYER_INFINIBAND, {.global_route = true});
  EXPECT_EQ(path.is_global, 1);
  EXPECT_EQ(path.grh.sgid_index, 3);
  EXPECT_EQ(path.grh.traffic_class, 0);
}

TEST(BringUp, ATrafficClassNeedsAGlobalRoute) {
  const ibv_ah_attr path = path_of(IBV_LINK_LAYER_INFINIBAND, {.traffic_class = 104});
  EXPECT_EQ(path.is_global, 1);
  EXPECT_EQ(path.grh.traffic_class, 104);
}

TEST(BringUp, AServiceLevelIsPassedOn) {
  for (const uint8_t link_layer : {IBV_LINK_LAYER_INFINIBAND, IBV_LINK_LAYER_ETHERNET})
    EXPECT_EQ(path_of(link_layer, {.service_level = 3}).sl, 3);
}

TEST(BringUp, WhatAPeerIsNotReadyForIsSentAgainAsItAsks) {
  for (const uint8_t retries : {kRnrRetryCount, kRetryWhilePagesCome}) {
    g_asked.clear();
    Path path;
    path.own.mtu = path.peer.mtu = IBV_MTU_4096;
    path.peer.not_ready_retries = retries;
    EXPECT_TRUE(bring_to_rts(nullptr, place_on(IBV_LINK_LAYER_ETHERNET, {}), path).ok());
    ASSERT_EQ(g_asked.size(), 2u);
    EXPECT_NE(g_asked[1].mask & IBV_QP_RNR_RETRY, 0);
    EXPECT_EQ(g_asked[1].attributes.rnr_retry, retries);
    EXPECT_EQ(g_asked[0].attributes.min_rnr_timer, 12) << "0.64 ms";
  }
}

TEST(BringUp, APartitionIsChosenFirst) {
  g_asked.clear();
  EXPECT_TRUE(bring_to_init(nullptr, place_on(IBV_LINK_LAYER_INFINIBAND, {})).ok());
  ASSERT_EQ(g_asked.size(), 1u);
  EXPECT_NE(g_asked[0].mask & IBV_QP_PKEY_INDEX, 0);
  EXPECT_EQ(g_asked[0].attributes.pkey_index, 2);
  EXPECT_EQ(g_asked[0].attributes.port_num, 1);
}

}  // namespace
}  // namespace rrpc::provider::verbs
