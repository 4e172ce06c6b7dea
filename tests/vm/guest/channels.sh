# In the guest: channels, retries, futures and declared errors. That one adapter dies like the other is shown elsewhere.
. tests/vm/guest_pytest.sh
guest_pytest rxe -k "not hedging and not kills and not least_outstanding and not budget" tests/test_channels.py tests/test_several_addresses.py \
  tests/test_retries.py tests/test_futures.py tests/test_declared_errors.py
