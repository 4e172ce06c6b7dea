# In the guest: connections whose cable is cut, a host with two ports that loses one, then connections whose interface goes
# down, which ends rdma_cm over rxe for good.
status=0
bash tests/vm/cable.sh || status=1
bash tests/vm/two_ports.sh || status=1
bash tests/vm/link_down.sh || status=1
exit "$status"
