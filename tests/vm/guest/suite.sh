# In the guest: the suites that every transport passes, over both adapters and both ways of connecting.
. tools/vm/rdma.sh && rdma_single || exit
options=(-q -p no:cacheprovider -p no:hypothesispytest -o timeout=120 --tb=short --durations=15)
export RRPC_TEST_TIME_SCALE=10
RRPC_TEST_TRANSPORTS=rxe,siw,rxe-socket python -m pytest "${options[@]}" tests/test_calls.py tests/test_strided.py tests/test_bulk.py tests/test_deadlines.py \
  tests/test_context.py tests/test_hops.py tests/test_cancellation.py tests/test_callbacks.py tests/test_core_callbacks.py tests/test_core_streams.py
