# In the guest: the core's client and server over each adapter, in C++, where emulation costs little: calls, buffers, streams,
# callbacks, cancels, deadlines, drains, with real threads in every way of polling. The rest of these programs runs outside.
. tools/vm/rdma.sh && rdma_single || exit
export RRPC_TEST_TRANSPORTS=rxe,siw,rxe-socket RRPC_TEST_SCALE=0.05
status=0
for program in driver callbacks driver_stream; do
  "build/release/${program}_test" --gtest_filter='All/*' || status=1
done
exit "$status"
