# In the guest: what handlers know of their calls, calls of theirs and back, cancellation, and the core's own streams, over both adapters.
. tests/vm/guest_pytest.sh
guest_pytest rxe,siw tests/test_context.py tests/test_hops.py tests/test_cancellation.py tests/test_callbacks.py \
  tests/test_core_callbacks.py tests/test_core_streams.py
