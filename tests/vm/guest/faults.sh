# In the guest: faults at each step of the protocol over both adapters, whose cables are programs (tests/faults). CASES for
# each adapter, and SEED, as `python -m tests.faults` has them.
export RDMA_TAPS=1 PYTHONPATH="$PWD"
. tools/vm/rdma.sh && rdma_pair_rxe && rdma_pair_siw || exit
faults() { python -m tests.faults --transports "$1" --lanes 1 --cases "${CASES:-14}" --seed "${SEED:-1}"; }
echo "faults over rxe and siw"  # a guest that has said nothing yet is taken for one that hangs
faults rxe &
rxe=$!
faults siw &
status=0
wait "$rxe" || status=1
wait $! || status=1
exit "$status"
