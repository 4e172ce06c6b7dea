# In the guest: the suites that every transport passes, over both adapters; calls over both ways of connecting, too.
. tests/vm/guest_pytest.sh
status=0
guest_pytest rxe,siw tests/test_strided.py tests/test_bulk.py tests/test_deadlines.py || status=1
guest_pytest rxe,siw,rxe-socket tests/test_calls.py || status=1
exit "$status"
