# Sourced in the guest by tests/vm/guest/: guest_pytest TEST... runs these, in one process: to start is slow here.
. tools/vm/rdma.sh && rdma_single || exit
guest_pytest() {
  RRPC_TEST_TRANSPORTS=rxe,siw,rxe-socket RRPC_TEST_TIME_SCALE=10 python -m pytest -v -p no:cacheprovider -p no:hypothesispytest \
    -p no:xdist -o timeout=120 --tb=short --durations=60 "$@"
}
