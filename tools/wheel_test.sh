#!/usr/bin/env bash
# tools/wheel_test.sh: sdist -> wheel -> an empty virtual environment -> a first import, as a user would do.
source "$(dirname "$0")/lib.sh"
unset PYTHONPATH  # else rrpc may come from there
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
constraints="$PWD/tools/constraints.txt"
smoke="$PWD/tools/wheel_smoke.py"
python="$PWD/.venv/bin/python"
step "sdist" "$python" -c 'import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])' "$work"
# Its sources several at a time, which takes half as long: what a wheel has in it is tested here, the code elsewhere.
step "wheel" "$python" -m pip wheel -q --no-deps --no-build-isolation -C cmake.define.RRPC_UNITY=ON -w "$work" "$work"/rrpc_rdma-*.tar.gz
cd "$work"
step "empty environment" "$python" -m venv clean
step "install wheel" clean/bin/python -m pip install -q -c "$constraints" "$work"/rrpc_rdma-*.whl
if has_verbs_headers; then verbs=with-verbs; else verbs=without-verbs; fi
if has_tls_headers; then tls=with-tls; else tls=without-tls; fi
step "use wheel" clean/bin/python "$smoke" "$verbs" "$tls"
