# In the guest: connections whose cable is cut, then those whose interface goes down, which ends rdma_cm over rxe for good.
status=0
bash tests/vm/cable.sh || status=1
bash tests/vm/link_down.sh || status=1
exit "$status"
