# In the guest: network interfaces go down under live connections. rxe by rdma_cm last: nothing over it works after that.
. tools/vm/rdma.sh && rdma_single || exit
export RRPC_TEST_TIME_SCALE=10
status=0
for transports in siw,rxe-socket rxe; do
  RRPC_TEST_TRANSPORTS="$transports" python -m pytest -q -p no:cacheprovider tests/vm/link_down.py || status=1
done
exit "$status"
