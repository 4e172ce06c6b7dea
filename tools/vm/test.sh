#!/usr/bin/env bash
# tools/vm/test.sh [SUITE...]: what only real verbs can show, in virtual machines with Linux's software adapters. One line
# a suite, and twice a minute one that says which are under way and what each said last; build/logs has what they write, as
# they write it. All run, also after one failed; half as many at a time as there are processors, but two at least
# (VM_LANES: so many at a time).
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

# pytest rewrites its tests as it imports them, and keeps that beside their bytecode: the guest would do it each time.
. tests/vm/guest_pytest.sh
RRPC_IN_VM=1 RRPC_TEST_TIME_SCALE=1 step "vm: collect the tests" guest_pytest --collect-only -q $(verbs_tests) || exit 1

wanted=("$@")
lanes="${VM_LANES:-$(($(nproc) > 4 ? $(nproc) / 2 : 2))}"
work="$(mktemp -d)"
mkdir "$work"/{running,failed}
reporter=
finish() {
  if [ -n "$reporter" ]; then kill "$reporter" 2>/dev/null || true; fi
  rm -rf "$work"
}
trap finish EXIT

report() {
  local each name
  while sleep 30; do
    for each in "$work"/running/*; do
      [ -e "$each" ] || continue
      name="$(basename "$each")"
      printf '  running: %-22s %3d s  %s\n' "$name" $((SECONDS - $(<"$each"))) "$(tail -n 1 "$LOGS/vm:-$name.log" 2>/dev/null | cut -c1-90)"
    done
  done
}

suite() {  # suite NAME COMMAND...
  local name="$1"
  shift
  known+=" $name"
  [ ${#wanted[@]} -eq 0 ] || [[ " ${wanted[*]} " == *" $name "* ]] || return 0
  while [ "$(find "$work/running" -type f | wc -l)" -ge "$lanes" ]; do sleep 0.5; done
  echo "$SECONDS" >"$work/running/$name"
  {
    step "vm: $name" "$@" || touch "$work/failed/$name"
    rm "$work/running/$name"
  } &
  suites+=($!)
}
suites=() known=
report &
reporter=$!
# The longest first. The limits are three times what each took on a quiet machine, and grow with the guest's slowness.
guest=(tools/vm/run -e CI)
suite python "${guest[@]}" -t 600 -- bash tests/vm/guest/python.sh
suite links "${guest[@]}" -t 450 -- bash tests/vm/guest/links.sh
suite core "${guest[@]}" -t 450 -- bash tests/vm/guest/core.sh
suite faults "${guest[@]}" -e CASES -e SEED -t 450 -- bash tests/vm/guest/faults.sh
suite two_hosts tools/vm/pair -e CI -t 300 "bash tests/vm/guest/two_hosts_server.sh" "bash tests/vm/guest/two_hosts_client.sh"
suite conformance "${guest[@]}" -t 300 -- bash tests/vm/guest/conformance.sh
suite machine tools/vm/selftest.sh
if [ ${#suites[@]} -gt 0 ]; then wait "${suites[@]}"; fi
for name in "${wanted[@]}"; do
  [[ "$known " == *" $name "* ]] || { echo "vm: there is no suite $name; there are:$known" && touch "$work/failed/$name"; }
done
[ -z "$(ls "$work/failed")" ]
