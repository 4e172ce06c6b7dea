#!/usr/bin/env bash
# tools/vm/bench.sh [--quick] [--runs N] [--only WORDS]: ours beside perftest, in one guest (bench/vm/compare.py); the
# figures go to bench/out/vm.json. RRPC_VM_CPUS is the guest's number of processors.
source "$(dirname "$0")/../lib.sh"
lacking="$(tools/vm/needs.sh | tr '\n' ' ')"
[ -z "$lacking" ] || { echo "bench-vm needs: apt-get install $lacking" >&2; exit 1; }
[ -e rrpc/_verbs.so ] || { echo "bench-vm: rrpc was built without the verbs provider" >&2; exit 1; }
step "build verbs_bench" cmake --build build/release --parallel "$JOBS" --target verbs_bench
step "vm: kernel and modules" tools/vm/build.sh
mkdir -p bench/out
tools/vm/run -t 3600 -c "${RRPC_VM_CPUS:-2}" -w bench/out -- bash -c \
  '. tools/vm/rdma.sh && rdma_single && exec python -m bench.vm.compare --json bench/out/vm.json "$@"' bench "$@"
