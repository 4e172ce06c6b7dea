#!/usr/bin/env bash
# tools/build.sh release|asan|tsan|tidy|python: configures once, then builds what changed in build/PRESET.
# release and python (release without the tests) also put the extension into rrpc/.
source "$(dirname "$0")/lib.sh"
goal="${1:-release}"
preset="${goal/python/release}"
options=(-DPython_EXECUTABLE="$PWD/.venv/bin/python" -Dpybind11_DIR="$(.venv/bin/python -m pybind11 --cmakedir)")
targets=(all)
if [ "$goal" = python ]; then targets=(rrpc_python); fi
# What was chosen before stays: `make demo` on a tree that builds tests must not configure it anew without them.
cache="build/$preset/CMakeCache.txt"
if ! has_header gtest/gtest.h; then options+=(-DRRPC_BUILD_TESTS=OFF); fi
# Headers count too, come or gone: rdma-core's, with which the verbs provider is built, OpenSSL's and msgpack-cxx's.
if has_verbs_headers; then verbs=yes; else verbs=no; fi
if has_tls_headers; then tls=yes; else tls=no; fi
if has_msgpack_headers; then msgpack=yes; else msgpack=no; fi
if [ ! -e "build/$preset/build.ninja" ] || ! grep -qF "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" "$cache" ||
  [ CMakePresets.json -nt "$cache" ] || [ "$(cat "build/$preset/headers" 2>/dev/null)" != "$verbs $tls $msgpack" ] ||
  { [ -e "build/$preset/no-tests" ] && [[ "${options[*]}" != *TESTS=OFF* ]]; }; then
  rm -f "$cache" "build/$preset/no-tests"
  step "configure $preset" cmake --preset "$preset" "${options[@]}"
  echo "$verbs $tls $msgpack" >"build/$preset/headers"
  if [[ "${options[*]}" == *TESTS=OFF* ]]; then touch "build/$preset/no-tests"; fi
fi
if [ "$goal" = tidy ]; then exit 0; fi
if [ "$verbs" = no ]; then echo "build: without the verbs provider, as rdma-core's headers (libibverbs-dev, librdmacm-dev) are not here"; fi
if [ "$tls" = no ]; then echo "build: without TLS, as OpenSSL's headers (libssl-dev) are not here"; fi
if [ "$msgpack" = no ]; then echo "build: without compiled plans, as msgpack-cxx's headers (libmsgpack-cxx-dev) are not here"; fi
step "build $goal" cmake --build "build/$preset" --parallel "$JOBS" --target "${targets[@]}"

if [ "$preset" = release ]; then
  stage=build/release/stage
  rm -rf "$stage"
  step "install release" cmake --install build/release --prefix "$stage" --component python
  for built in "$stage"/rrpc/*; do
    [ -f "$built" ] || continue  # folders hold what the checkout has itself
    target="rrpc/$(basename "$built")"
    # Renamed into place: a process that has the old one mapped keeps it.
    cmp -s "$built" "$target" || { cp "$built" "$target.new" && mv "$target.new" "$target"; }
  done
  # What this build doesn't have must not stay from an earlier one.
  for old in rrpc/*.so; do
    if [ ! -e "$stage/$old" ]; then rm -f "$old"; fi
  done
  # Here, because the virtual machine keeps nothing that it writes.
  step "bytecode" .venv/bin/python -m compileall -q rrpc tests
fi
