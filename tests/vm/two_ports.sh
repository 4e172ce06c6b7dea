# In the guest: a channel over two adapters, of which one loses its link. They stand for two ports of one host.
. tools/vm/rdma.sh && rdma_ports || exit
. tests/vm/guest_pytest.sh
guest_pytest tests/vm/two_ports.py
