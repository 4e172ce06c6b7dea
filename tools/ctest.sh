#!/usr/bin/env bash
# tools/ctest.sh release|fast|asan|tsan: runs the C++ tests of that build (fast: all but those named *Slow*).
source "$(dirname "$0")/lib.sh"
preset="${1:-release}"
directory="build/${preset/fast/release}"
if [ -e "$directory/no-tests" ]; then
  missing "no GoogleTest when $directory was configured: the C++ tests are left out"
  exit 0
fi
if ! compgen -G "cpp/tests/*_test.cc" >/dev/null; then
  echo "cpp/tests has no tests yet"
  exit 0
fi
# One more than processors: some tests wait.
run=(ctest --preset "$preset" --parallel "$((JOBS + 1))")
# ThreadSanitizer's shadow memory needs addresses that randomisation may take.
if [ "$preset" = tsan ]; then run=(setarch "$(uname -m)" -R "${run[@]}"); fi
status=0
name="C++ tests ($preset)"
log="$LOGS/${name// /-}.log"
export LOG_SKIP='^ +Start +[0-9]+:|   Passed  |^$'
step "$name" "${run[@]}" || status=$?
# GCC 12's libtsan itself asks for 500 TB of shadow memory now and then, where a test has loaded rrpc/_tls.so, and ends the
# program; less often, if at all, since it is told not to look at thread locals of such libraries (CMakePresets.json).
crashes="$(grep -c "ThreadSanitizer failed to allocate" "$log" || true)"
if [ "$status" -ne 0 ] && [ "$crashes" -gt 0 ] && [ "$(grep -cE '\*\*\*(Failed|Exception|Timeout)' "$log")" -eq "$crashes" ]; then
  echo "ThreadSanitizer itself crashed in $crashes tests, which run once more"
  status=0
  step "$name" "${run[@]}" --rerun-failed || status=$?
fi
if [ "$status" -eq 0 ]; then grep -E "tests passed|\(Skipped\)" "$log" || true; fi
exit "$status"
