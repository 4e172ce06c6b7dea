# Sourced in the guest, after rdma_single: each adapter carries other people's programs, both ways of connecting.
listens() {  # listens WHERE PID: WHERE is a TCP port, or an adapter for rdma_cm
  case "$1" in
    [0-9]*) ss -Hltn | grep -q ":$1 " ;;
    *) rdma resource show cm_id | grep -q "link $1/.*state LISTEN.*pid $2 " ;;
  esac
}
both_ends() {  # both_ends WHERE-THE-SERVER-LISTENS SERVER -- CLIENT
  local where="$1" server=() pid
  shift
  while [ "$1" != -- ]; do server+=("$1"); shift; done
  shift
  "${server[@]}" &
  pid=$!
  until listens "$where" "$pid"; do
    kill -0 "$pid" || return
    sleep 0.2
  done
  "$@" && wait "$pid" && return
  kill "$pid" 2>/dev/null
  wait "$pid"
  return 1
}
# perftest's client crashes where its request to connect is rejected, as the software adapters do once in a while. Its
# server listens on every adapter, siw0 last: once it is there, it is on rxe0.
three_times() { "$@" || "$@" || "$@"; }
both_ends rxe0 rping -s -a 10.9.0.1 -C 3 -- rping -c -a 10.9.0.1 -C 3 &&
  both_ends siw0 rping -s -a 10.9.1.1 -C 3 -- rping -c -a 10.9.1.1 -C 3 &&
  three_times both_ends siw0 ib_send_lat -F -R -n 100 -- ib_send_lat -F -R -n 100 10.9.0.1 &&
  both_ends 18515 ibv_rc_pingpong -d rxe0 -g 1 -n 10 -- ibv_rc_pingpong -d rxe0 -g 1 -n 10 10.9.0.1 &&
  echo "adapters: all work"
