# In the guest: calls, what handlers know of them, calls of theirs and back; tests/over_verbs.py says over which adapters.
. tests/vm/guest_pytest.sh
guest_pytest tests/vm tests/test_calls.py tests/test_strided.py tests/test_bulk.py tests/test_deadlines.py \
  tests/test_context.py tests/test_hops.py tests/test_cancellation.py tests/test_callbacks.py tests/test_core_callbacks.py
