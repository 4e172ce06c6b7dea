# Shared by the scripts of tools/: sourced, never run. Each script works from the repository's root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PWD/.venv/bin:$PATH"
unset PYTHONDONTWRITEBYTECODE  # see the Makefile
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
LOGS="$PWD/build/logs"
JOBS="${JOBS:-$(nproc)}"
mkdir -p "$LOGS"

in_ci() { [ "${CI:-}" = true ]; }

# step NAME COMMAND...: runs quietly into build/logs/NAME.log, prints one line, and the log's end on failure
# (LOG_SKIP: without the lines that match).
step() {
  local name="$1" log="$LOGS/${1// /-}.log" start=$SECONDS status=0
  shift
  # "||" would switch `set -e` off inside a shell function: commands given here are programs or do without it.
  "$@" >"$log" 2>&1 </dev/null || status=$?
  if [ "$status" -eq 0 ]; then
    printf '%-32s ok      %3d s\n' "$name" $((SECONDS - start))
  else
    printf '%-32s FAILED  %3d s  (%s)\n' "$name" $((SECONDS - start)) "${log#"$PWD"/}"
    grep -vE "${LOG_SKIP:-^$}" "$log" | tail -n "${LOG_TAIL:-80}" | sed 's/^/    /'
  fi
  return "$status"
}

# missing WHAT: says what the build goes on without; in CI that is a failure.
missing() {
  echo "setup: $*" >&2
  if in_ci; then exit 1; fi
}

apt_updated=no
apt_update() {
  [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null || return 1
  [ "$apt_updated" = yes ] || step "apt-get update" apt-get update -qq || return 1
  apt_updated=yes
}
apt_install() {  # apt_install PACKAGE...: false where there is no apt or no right to use it
  apt_update || return 1
  DEBIAN_FRONTEND=noninteractive step "apt-get install $1" apt-get install -y -qq --no-install-recommends "$@"
}

has_header() { echo "#include <$1>" | g++ -E -x c++ "${@:2}" - >/dev/null 2>&1; }
has_msgpack_headers() { has_header msgpack/unpack.hpp -DMSGPACK_NO_BOOST; }
has_tls_headers() { has_header openssl/ssl.h; }
has_verbs_headers() { has_header infiniband/verbs.h && has_header rdma/rdma_cma.h; }
