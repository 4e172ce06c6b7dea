# Sourced in the guest, after rdma_single: each adapter carries other people's programs, both ways of connecting.
both_ends() {  # both_ends LISTENING-PORT SERVER -- CLIENT
  local port="$1" server=() pid
  shift
  while [ "$1" != -- ]; do server+=("$1"); shift; done
  shift
  "${server[@]}" &
  pid=$!
  [ "$port" = rdma ] || until ss -Hltn | grep -q ":$port "; do sleep 0.2; done
  [ "$port" != rdma ] || until rdma resource show cm_id | grep -q "state LISTEN.*pid $pid"; do sleep 0.2; done
  "$@" && wait "$pid" && return
  kill "$pid" 2>/dev/null
  wait "$pid"
  return 1
}
# perftest's client crashes where its request to connect is rejected, as the software adapters do once in a while.
twice() { "$@" || "$@"; }
both_ends rdma rping -s -a 10.9.0.1 -C 3 -- rping -c -a 10.9.0.1 -C 3 &&
  both_ends rdma rping -s -a 10.9.1.1 -C 3 -- rping -c -a 10.9.1.1 -C 3 &&
  twice both_ends rdma ib_send_lat -F -R -n 100 -- ib_send_lat -F -R -n 100 10.9.0.1 &&
  both_ends 18515 ibv_rc_pingpong -d rxe0 -g 1 -n 10 -- ibv_rc_pingpong -d rxe0 -g 1 -n 10 10.9.0.1 &&
  echo "adapters: all work"
