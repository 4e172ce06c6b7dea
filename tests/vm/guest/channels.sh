# In the guest: channels, retries, futures, streams and declared errors, over both adapters.
. tests/vm/guest_pytest.sh
guest_pytest rxe,siw tests/test_channels.py tests/test_several_addresses.py tests/test_retries.py tests/test_futures.py \
  tests/test_streams.py tests/test_stream_limits.py tests/test_declared_errors.py
