# In the guest: the provider conformance suite over each adapter, hostile peers, and addresses that can't be had.
. tools/vm/rdma.sh && rdma_single && exec build/release/verbs_conformance
