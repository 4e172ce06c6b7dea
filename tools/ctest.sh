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
export LOG_SKIP='^ +Start +[0-9]+:|   Passed  |^$'
step "C++ tests ($preset)" "${run[@]}" || status=$?
if [ "$status" -eq 0 ]; then grep -E "tests passed|\(Skipped\)" "$LOGS/C++-tests-($preset).log" || true; fi
exit "$status"
