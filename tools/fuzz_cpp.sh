#!/usr/bin/env bash
# tools/fuzz_cpp.sh SECONDS [NAME...]: runs each libFuzzer target of cpp/fuzz for so long, beginning with the inputs that
# are kept in cpp/fuzz/corpus/NAME. What fails stands in build/fuzz/NAME-*; `make fuzz-cpp` ends with 1 then.
source "$(dirname "$0")/lib.sh"
seconds="${1:-60}"
names=("${@:2}")
if [ ${#names[@]} -eq 0 ]; then
  for source in cpp/fuzz/*_fuzz.cc; do names+=("$(basename "$source" _fuzz.cc)"); done
fi
# The first clang that has libFuzzer's runtime.
find_clang() {
  local found
  for found in $(compgen -c clang++ | grep -xE 'clang\+\+(-[0-9]+)?' | sort -ru); do
    if echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
      "$found" -x c++ -fsanitize=fuzzer,address - -o /dev/null 2>/dev/null; then command -v "$found" && return; fi
  done
  return 1
}
clang="$(find_clang)" || { apt_install clang-16 libclang-rt-16-dev && clang="$(find_clang)"; } ||
  { missing "no clang (clang-16, libclang-rt-16-dev): libFuzzer's targets are left out"; exit 0; }
if ! grep -qsF "CMAKE_CXX_COMPILER:STRING=$clang" build/fuzz/CMakeCache.txt || [ CMakePresets.json -nt build/fuzz/CMakeCache.txt ]; then
  rm -f build/fuzz/CMakeCache.txt
  step "configure fuzz" cmake --preset fuzz -DCMAKE_CXX_COMPILER="$clang"
fi
step "build fuzz" cmake --build build/fuzz --parallel "$JOBS" --target rrpc_fuzz
status=0
pids=()
run() {
  local name="$1" found="build/fuzz/corpus/$1" status=0
  mkdir -p "$found"
  step "fuzz $name, $seconds s" build/fuzz/"${name}_fuzz" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 \
    -max_len=4096 -print_final_stats=1 -verbosity=0 -artifact_prefix="build/fuzz/$name-" "$found" "cpp/fuzz/corpus/$name" || status=1
  grep -hE 'number_of_executed_units' "$LOGS/fuzz-$name,-$seconds-s.log" | sed "s/^/    $name: /" || true
  return "$status"
}
wait_for_all() {
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  pids=()
}
for name in "${names[@]}"; do
  run "$name" &
  pids+=($!)
  if [ ${#pids[@]} -ge "$JOBS" ]; then wait_for_all; fi
done
wait_for_all
exit "$status"
