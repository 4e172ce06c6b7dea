# Sourced in the guest: guest_pytest TEST... runs these, in one process: to start is slow here. Each is told as it begins
# and as it ends. verbs_tests lists the files of which tests run over verbs.
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 PYTHONUNBUFFERED=1
guest_pytest() {
  RRPC_TEST_TRANSPORTS="${RRPC_TEST_TRANSPORTS:-rxe,siw,rxe-socket}" python -m pytest -v -p no:cacheprovider -p pytest_timeout \
    -o timeout="$((12 * RRPC_TEST_TIME_SCALE))" --tb=short --durations=25 "$@"
}
verbs_tests() { echo tests/vm && sed -nE 's/^    "(\w+\/test_\w+)": .*/tests\/\1.py/p' tests/helpers/over_verbs.py; }
