# In the guest: two adapters joined by a cable, which is cut: first rxe, then siw, whose two ends are in namespaces.
. tools/vm/rdma.sh && rdma_pair_rxe && rdma_pair_siw || exit
export PYTHONPATH="$PWD"
output="$(mktemp)"

# Both ends start at once: the client tries until the server is there.
# cable NAME LINK-OF-THE-SERVER SERVER'S-ADDRESSES CLIENT'S-ADDRESSES, `at_server` and `at_client` run in their places
cable() {
  at_server python tests/vm/lost_peer.py serve $3 >"$output" 2>&1 &
  local server=$!
  echo "cable: $1"
  BACK="${cut_from}tc qdisc del dev $2 root" \
    at_client python tests/vm/lost_peer.py lose "${cut_from}tc qdisc add dev $2 root netem loss 100%" $4 ||
    { cat "$output"; return 1; }
  kill "$server"
  wait "$server"
  return 0
}

at_server() { "$@"; }
at_client() { "$@"; }
cut_from=
cable rxe va 'verbs://10.8.1.1:7471 verbs+tcp://10.8.1.1:7472?device=rxa' \
  'verbs://10.8.1.1:7471?device=rxb verbs+tcp://10.8.1.1:7472?device=rxb' || exit
at_server() { ip netns exec a "$@"; }
at_client() { ip netns exec b "$@"; }
cut_from="ip netns exec a "
cable siw sva verbs://10.8.0.1:7471 verbs://10.8.0.1:7471
