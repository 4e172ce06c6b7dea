# In the guest: streams of every kind, over both adapters.
. tests/vm/guest_pytest.sh
guest_pytest rxe,siw tests/test_streams.py tests/test_stream_limits.py
