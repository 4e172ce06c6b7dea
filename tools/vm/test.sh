#!/usr/bin/env bash
# tools/vm/test.sh [SUITE...]: what only real verbs can show, in virtual machines with Linux's software adapters. One line
# a suite: machine, conformance, and each of tests/vm/guest/. All run, also after one failed; two at a time, as more would
# only share the processors (VM_LANES: so many at a time).
source "$(dirname "$0")/../lib.sh"
lacking="$(tools/vm/needs.sh | tr '\n' ' ')"
if [ -n "$lacking" ]; then
  missing "the tests in the virtual machine are left out; they need: apt-get install $lacking"
  exit 0
fi
if [ ! -e rrpc/_verbs.so ]; then
  missing "the tests in the virtual machine are left out: rrpc was built without the verbs provider"
  exit 0
fi
step "vm: kernel and modules" tools/vm/build.sh || exit 1

wanted=("$@")
failed="$(mktemp)"
trap 'rm -f "$failed"' EXIT
suite() {  # suite NAME COMMAND...
  local name="$1"
  shift
  [ ${#wanted[@]} -eq 0 ] || [[ " ${wanted[*]} " == *" $name "* ]] || return 0
  while [ "$(jobs -rp | wc -l)" -ge "${VM_LANES:-2}" ]; do sleep 0.5; done
  { step "vm: $name" "$@" || echo "$name" >>"$failed"; } &
}
run=(tools/vm/run -e CI)

# Those that bring layouts of their own: NAME.sh in one guest, NAME_server.sh and NAME_client.sh in two.
for script in tests/vm/guest/*.sh; do
  [ -e "$script" ] || continue
  case "$script" in
    *_client.sh) ;;
    *_server.sh) suite "$(basename "${script%_server.sh}")" tools/vm/pair -e CI -t 450 "bash $script" "bash ${script/_server/_client}" ;;
    *) suite "$(basename "${script%.sh}")" "${run[@]}" -t 900 -- bash "$script" ;;
  esac
done
suite machine tools/vm/selftest.sh
suite conformance "${run[@]}" -t 600 -- bash -c ". tools/vm/rdma.sh && rdma_single && build/release/verbs_conformance --gtest_brief=1"
wait
[ ! -s "$failed" ]
