#!/usr/bin/env bash
# tools/check.sh: everything that reads the code without running it. All checks run, then the result is theirs.
# tools/check.sh --fix formats instead.
source "$(dirname "$0")/lib.sh"
mapfile -t cpp_files < <(git ls-files --cached --others --exclude-standard 'cpp/*.h' 'cpp/*.cc' | while read -r f; do [ -e "$f" ] && echo "$f"; done)

if [ "${1:-}" = --fix ]; then
  step "clang-format" clang-format -i "${cpp_files[@]}"
  step "ruff format" ruff format .
  step "ruff --fix" ruff check --fix .
  exit 0
fi

status=0
step "layers" python tools/check_layers.py || status=1
step "house rules" python tools/check_house.py || status=1
step "ruff check" ruff check . || status=1
step "ruff format" ruff format --check . || status=1
step "mypy" mypy || status=1
step "clang-format" clang-format --dry-run --Werror "${cpp_files[@]}" || status=1
if [ "${1:-}" != --no-tidy ]; then
  tools/build.sh tidy && step "clang-tidy" python tools/tidy.py --jobs "$JOBS" || status=1
fi
exit "$status"
