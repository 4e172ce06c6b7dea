# Sourced by root in the guest: software adapters and the networks below them. Each rdma_* function makes one layout;
# they may be used together. uverbs devices appear with `rdma link add`; without a network card of its own the guest
# reaches nothing but itself.
#   rdma_single    rxe0 at 10.9.0.1 and siw0 at 10.9.1.1, each calling itself
#   rdma_ports     rxp at 10.9.4.1 and rxq at 10.9.5.1: two ports of one host, on a network each
#   rdma_pair_rxe  rxa at 10.8.1.1 and rxb at 10.8.2.1, joined by the cable va-vb; a client binds its source address
#   rdma_pair_siw  siwa at 10.8.0.1 in the namespace a, siwb at 10.8.0.2 in b (ip netns exec a ...), cable sva-svb
#                  (with it, listening on 0.0.0.0 through rdma_cm fails in every namespace: name an address)
#   rdma_wire N    rxe0 at 10.7.0.N and siw0 at 10.7.1.N, each on a card of its own to the other of two guests
#                  (N is 1 or 2, tools/vm/pair; messages take some 20 ms there)
# With RDMA_TAPS=1 the cable of a pair is a program: what leaves va comes to va-tap, what is sent there arrives at va, and
# so with the other ends (tests/faults/packet_wire.py); siw's packets are as large as TCP makes them.
# Cutting a cable: tc qdisc add dev va root netem loss 100%, or ip link set va down (a port error).

rdma_single() {
  modprobe -a ib_uverbs rdma_ucm rdma_rxe siw dummy || return
  rdma_on_dummy rxe0 rxe rx0 10.9.0.1 && rdma_on_dummy siw0 siw iw0 10.9.1.1
}

rdma_ports() {
  modprobe -a ib_uverbs rdma_ucm rdma_rxe dummy || return
  rdma_on_dummy rxp rxe rp 10.9.4.1 && rdma_on_dummy rxq rxe rq 10.9.5.1
}

rdma_cable() {  # rdma_cable ONE OTHER [OPTION-OF-THE-LINKS...]
  local one="$1" other="$2" each
  shift 2
  [ -n "${RDMA_TAPS:-}" ] || { ip link add "$one" "$@" type veth peer name "$other" "$@"; return; }
  for each in "$one" "$other"; do
    ip link add "$each" "$@" type veth peer name "$each-tap" "$@" && ip link set "$each-tap" up || return
  done
}

# Not on the loopback link: adapters there look active, and no rdma_cm connection is ever made.
rdma_on_dummy() {  # rdma_on_dummy ADAPTER TYPE LINK ADDRESS
  ip link add "$3" mtu 4200 type dummy && ip addr add "$4/24" dev "$3" && ip link set "$3" up &&
    rdma link add "$1" type "$2" netdev "$3"
}

# rxe knows the first namespace only, where the kernel would short-circuit two addresses of its own. Rules of its own
# send what goes from one to the other over the cable, and take what comes from there for local before they apply.
rdma_pair_rxe() {
  modprobe -a ib_uverbs rdma_ucm rdma_rxe veth sch_netem || return
  rdma_cable va vb mtu 4200 || return
  ip addr add 10.8.1.1/32 dev va && ip addr add 10.8.2.1/32 dev vb || return
  ip link set va up && ip link set vb up || return
  local each
  for each in all va vb; do sysctl -qw "net.ipv4.conf.$each.rp_filter=0" "net.ipv4.conf.$each.accept_local=1" || return; done
  ip neigh replace 10.8.2.1 lladdr "$(cat /sys/class/net/vb/address)" dev va nud permanent
  ip neigh replace 10.8.1.1 lladdr "$(cat /sys/class/net/va/address)" dev vb nud permanent
  ip route add 10.8.2.1 dev va src 10.8.1.1 table 101 && ip route add 10.8.1.1 dev vb src 10.8.2.1 table 102 || return
  ip rule add pref 10 iif va lookup local && ip rule add pref 11 iif vb lookup local || return
  ip rule add pref 20 from 10.8.1.1 to 10.8.2.1 lookup 101 && ip rule add pref 21 from 10.8.2.1 to 10.8.1.1 lookup 102 || return
  ip rule add pref 22 oif va lookup 101 && ip rule add pref 23 oif vb lookup 102 || return
  ip rule add pref 100 lookup local && ip rule del pref 0 || return
  rdma link add rxa type rxe netdev va && rdma link add rxb type rxe netdev vb
}

# A cut siw notices when TCP gives up: RDMA_TCP_RETRIES (4: 6 to 9 s) sets after how many retries.
rdma_pair_siw() {
  modprobe -a ib_uverbs rdma_ucm siw veth sch_netem || return
  ip netns add a && ip netns add b && rdma_cable sva svb ${RDMA_TAPS:+mtu 65535} || return
  ip link set sva netns a && ip link set svb netns b || return
  local each
  for each in a b; do
    ip -n "$each" link set lo up && ip -n "$each" link set "sv$each" up || return
    ip netns exec "$each" sysctl -qw "net.ipv4.tcp_retries2=${RDMA_TCP_RETRIES:-4}" || return
  done
  ip -n a addr add 10.8.0.1/24 dev sva && ip -n b addr add 10.8.0.2/24 dev svb || return
  ip netns exec a rdma link add siwa type siw netdev sva && ip netns exec b rdma link add siwb type siw netdev svb
}

rdma_wire() {
  modprobe -a virtio_net ib_uverbs rdma_ucm rdma_rxe siw || return
  local type link network=0
  for type in rxe siw; do
    link="$(basename "$(dirname "$(grep -lx "52:54:00:00:0$network:0$1" /sys/class/net/*/address)")")"
    ip addr add "10.7.$network.$1/24" dev "$link" && ip link set "$link" up || return
    rdma link add "${type}0" type "$type" netdev "$link" || return
    network=1
  done
}
