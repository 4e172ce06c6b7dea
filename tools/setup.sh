#!/usr/bin/env bash
# tools/setup.sh demo|test|bench|vm: system packages, the virtual environment .venv and rrpc in it, for development.
# Does nothing when nothing changed. PYTHON names the interpreter (default python3).
source "$(dirname "$0")/lib.sh"
goal="${1:-test}"
python="${PYTHON:-python3}"

python_headers() { "$1" -c 'import sysconfig; print(sysconfig.get_path("include"))'; }

require_toolchain() {
  command -v g++ >/dev/null || apt_install g++ || { echo "setup: a C++20 compiler (g++) is needed" >&2; exit 1; }
  command -v "$python" >/dev/null || apt_install python3 python3-venv || { echo "setup: Python 3.10 or later is needed" >&2; exit 1; }
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "setup: $python is older than Python 3.10" >&2; exit 1; }
  [ -e "$(python_headers "$python")/Python.h" ] || apt_install python3-dev || { echo "setup: Python's headers (python3-dev) are needed" >&2; exit 1; }
  if ! has_msgpack_headers; then
    { apt_install libmsgpack-cxx-dev && has_msgpack_headers; } ||
      missing "no msgpack-cxx headers (libmsgpack-cxx-dev): going on with the codec in Python alone, which is slower"
  fi
  if [ "$goal" != demo ] && ! has_tls_headers; then
    { apt_install libssl-dev && has_tls_headers; } || missing "no OpenSSL headers (libssl-dev): going on without TLS"
  fi
  if [ "$goal" != demo ] && ! has_header gtest/gtest.h; then
    { apt_install libgtest-dev && has_header gtest/gtest.h; } || missing "no GoogleTest (libgtest-dev): going on without the C++ tests"
  fi
  if [ "$goal" != demo ] && ! has_verbs_headers; then
    { apt_install libibverbs-dev librdmacm-dev && has_verbs_headers; } ||
      missing "no rdma-core headers (libibverbs-dev, librdmacm-dev): going on without the verbs provider"
  fi
}

make_venv() {
  [ -x .venv/bin/python ] && .venv/bin/python -c 'import pip' 2>/dev/null && return
  "$python" -c 'import ensurepip' 2>/dev/null || apt_install python3-venv || { echo "setup: Python's venv module (python3-venv) is needed" >&2; exit 1; }
  step "virtual environment" "$python" -m venv --clear .venv
}

without_gil() { .venv/bin/python -c 'import sys, sysconfig; sys.exit(not sysconfig.get_config_var("Py_GIL_DISABLED"))'; }

install_packages() {  # install_packages EXTRAS STAMP
  local stamp=".venv/setup-$2" hash wanted=(-c tools/constraints.txt -e ".[$1]")
  # Many packages have no wheels for an interpreter without the GIL yet; tests that need them are skipped there.
  if without_gil; then wanted=(-r tools/free_threaded.txt -e ".[build]"); fi
  hash="$(cat pyproject.toml tools/constraints.txt tools/free_threaded.txt tools/setup.sh | sha256sum)"
  # What the tests need includes what the demo needs.
  [[ "$(cat "$stamp" .venv/setup-test 2>/dev/null)" == *"$hash"* ]] && return
  # In place and without CMake: the package is imported from here, `make build` puts the extension beside it.
  step "python packages ($1)" .venv/bin/python -m pip install -q "${wanted[@]}" \
    --config-settings=editable.mode=inplace --config-settings=wheel.cmake=false
  echo "$hash" >"$stamp"
}

# What starts the virtual machine and what runs in it; the guest's kernel is tools/vm/build.sh's part.
require_vm() {
  local lacking
  mapfile -t lacking < <(tools/vm/needs.sh)
  [ ${#lacking[@]} -eq 0 ] && return
  apt_install rdma-core "${lacking[@]}" && [ -z "$(tools/vm/needs.sh)" ] ||
    missing "the virtual machine needs packages that are not here: $(tools/vm/needs.sh | tr '\n' ' ')"
}

require_toolchain
make_venv
case "$goal" in
  demo) install_packages build,demo demo ;;
  test) install_packages dev,demo,bench test ;;
  bench) install_packages dev,demo,bench test ;;
  vm)
    install_packages dev,demo,bench test
    require_vm
    ;;
  *) echo "usage: tools/setup.sh [demo|test|bench|vm]" >&2; exit 2 ;;
esac
