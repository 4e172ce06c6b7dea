# Sourced in the guest by tests/vm/guest/: guest_pytest TEST... runs these, in one process: to start is slow here.
. tools/vm/rdma.sh && rdma_single || exit
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 RRPC_TEST_TIME_SCALE=10
guest_pytest() {
  RRPC_TEST_TRANSPORTS="${RRPC_TEST_TRANSPORTS:-rxe,siw,rxe-socket}" python -m pytest -v -p no:cacheprovider -p pytest_timeout \
    -o timeout=120 --tb=short --durations=25 "$@"
}
