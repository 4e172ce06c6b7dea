#!/usr/bin/env bash
# tools/test_python.sh [ARGS]: the Python tests; ARGS go to pytest. Without ARGS all of them, and the branches of rrpc/ that
# they take are counted, in the tests' own processes and in those of rrpc's commands: a smaller part than fail_under in
# pyproject.toml is a failure. Not so on a free-threaded interpreter, for which some of what the tests use can't be had.
source "$(dirname "$0")/lib.sh"
# More processes than processors: most tests wait more than they compute.
tests=(-m pytest -q -n 3 --dist worksteal)
if [ $# -gt 0 ] || python -c 'import sysconfig, sys; sys.exit(not sysconfig.get_config_var("Py_GIL_DISABLED"))'; then
  exec python "${tests[@]}" "$@"
fi
rm -rf build/coverage
mkdir -p build/coverage
status=0
python -m coverage run "${tests[@]}" || status=$?
step "coverage: combine" python -m coverage combine -q || status=1
LOG_TAIL=40 step "coverage: report" python -m coverage report || status=1
echo "branch coverage of rrpc/: $(python -m coverage report --format=total --fail-under=0) %"
exit "$status"
