# In the guest: the suites that every transport passes, over both adapters and both ways of connecting.
. tests/vm/guest_pytest.sh
guest_pytest rxe,siw,rxe-socket tests/test_calls.py tests/test_strided.py tests/test_bulk.py tests/test_deadlines.py \
  tests/test_context.py tests/test_hops.py tests/test_cancellation.py tests/test_callbacks.py tests/test_core_callbacks.py tests/test_core_streams.py
