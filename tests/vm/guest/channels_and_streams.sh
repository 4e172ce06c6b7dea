# In the guest: streams, channels, retries, asyncio, interceptors, traces; tests/over_verbs.py says over which adapters.
. tests/vm/guest_pytest.sh
guest_pytest tests/test_streams.py tests/test_stream_limits.py tests/test_core_streams.py \
  tests/test_channels.py tests/test_several_addresses.py tests/test_retries.py tests/test_futures.py tests/test_declared_errors.py \
  tests/test_aio_{client,server,streams,channels,stream_interceptors}.py \
  tests/test_{client,server,stream}_interceptors.py tests/test_tracing_styles.py
