#!/usr/bin/env bash
# tools/vm/selftest.sh: what comes back from a guest, also from one that dies or hangs, and that its adapters work with
# other people's programs; when rrpc fails in the guest and this doesn't, it is rrpc.
set -euo pipefail
cd "$(dirname "$0")/../.."
work="$(mktemp -d)"
trap 'wait; rm -rf "$work"' EXIT

expect() {  # expect WHAT STATUS PATTERN COMMAND...: its exit status, and a line of its output
  local what="$1" status="$2" pattern="$3" got=0 output
  output="$(mktemp -p "$work")"
  shift 3
  "$@" >"$output" 2>&1 || got=$?
  if [ "$got" -eq "$status" ] && grep -q "$pattern" "$output"; then
    echo "$what: as expected"
  else
    echo "$what: status $got instead of $status, or no line with '$pattern' in:"
    cat "$output"
    exit 1
  fi
}

# It is mostly waited for: beside the others.
expect "a guest that says nothing" 98 "^vm: it is started again$" tools/vm/run -t 120 -q 5 -- sleep 1000 &
silent=$!

mkdir "$work/kept"
touch "$work/outside"
expect "status, output, variables, folders" 7 "^here $PWD as 0, two words$" \
  tools/vm/run -t 120 -w "$work/kept" -e "WORDS=two words" -- \
  bash -c 'echo "here $PWD as $(id -u), $WORDS"; touch "$0/kept/new" "$0/lost"; rm "$0/outside"; exit 7' "$work"
[ -e "$work/kept/new" ] && [ ! -e "$work/lost" ] && [ -e "$work/outside" ] || { echo "what the guest wrote is in the wrong places"; exit 1; }
expect "a guest that dies" 97 "Kernel panic" tools/vm/run -t 120 -- bash -c 'echo c >/proc/sysrq-trigger; sleep 60'
expect "a guest whose time is up" 124 "the guest's [0-9]* s are over" tools/vm/run -t 5 -- sleep 1000
expect "adapters" 0 "^adapters: all work$" tools/vm/run -t 180 -- bash -c '. tools/vm/rdma.sh && rdma_single && . tools/vm/adapters.sh'
wait "$silent"
