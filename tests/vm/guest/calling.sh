# In the guest: channels, retries, streams, asyncio, interceptors and traces, over both adapters.
. tools/vm/rdma.sh && rdma_single || exit
options=(-q -p no:cacheprovider -p no:hypothesispytest -o timeout=120 --tb=short --durations=15)
export RRPC_TEST_TIME_SCALE=10
RRPC_TEST_TRANSPORTS=rxe,siw python -m pytest "${options[@]}" -k "not uvloop" tests/test_channels.py tests/test_several_addresses.py tests/test_retries.py \
  tests/test_futures.py tests/test_streams.py tests/test_stream_limits.py tests/test_declared_errors.py tests/test_aio_client.py tests/test_aio_server.py tests/test_aio_streams.py \
  tests/test_aio_stream_interceptors.py tests/test_client_interceptors.py tests/test_server_interceptors.py tests/test_stream_interceptors.py \
  tests/test_ready_interceptors.py tests/test_otel.py tests/test_tracing.py tests/test_tracing_styles.py
