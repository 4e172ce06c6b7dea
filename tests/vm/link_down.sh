# In the guest: network interfaces go down under live connections. rxe by rdma_cm last: nothing over it works after that.
. tools/vm/rdma.sh && rdma_single || exit
. tests/vm/guest_pytest.sh
status=0
for transports in siw,rxe-socket rxe; do
  RRPC_TEST_TRANSPORTS="$transports" guest_pytest tests/vm/link_down.py || status=1
done
exit "$status"
