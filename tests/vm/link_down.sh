# In the guest: network interfaces go down under live connections. rxe by rdma_cm last: nothing over it works after that.
. tools/vm/rdma.sh && rdma_single || exit
. tests/vm/guest_pytest.sh
output="$(mktemp)"
RRPC_TEST_TRANSPORTS=siw,rxe-socket,rxe guest_pytest tests/vm/link_down.py 2>&1 | tee "$output" &
# The summary is the result: pytest itself has had a connection over rxe, and the kernel may hold up its end for ever.
while kill -0 $! 2>/dev/null && ! grep -qE '^=+ [0-9]+ [a-z]+.* in [0-9.]+s' "$output"; do sleep 0.5; done
grep -qE '^=+ 4 passed in ' "$output"
