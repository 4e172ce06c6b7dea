# In the guest: the core's client and server over each adapter, in C++, where emulation costs little: calls, buffers, streams,
# callbacks, cancels, deadlines, drains, with real threads. The rest of these programs runs outside. Both ways of polling
# are run over rxe by driver_test, elsewhere one over each adapter. Connections made by a socket (rxe_socket) differ from rxe's
# only while they are made and ended: driver_test shows that.
. tools/vm/rdma.sh && rdma_single || exit
export RRPC_TEST_TRANSPORTS=rxe,siw,rxe-socket RRPC_TEST_SCALE=0.05
status=0
build/release/driver_test --gtest_filter='All/*-*/rxe_socket_event:*/siw_event' || status=1
for program in callbacks driver_stream; do
  "build/release/${program}_test" --gtest_filter='All/*-*/rxe_socket_*:*/siw_event:*/rxe_adaptive' || status=1
done
exit "$status"
