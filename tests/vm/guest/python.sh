# In the guest: first what users are told where no adapter is; then Python's part of calls over adapters, which is
# what tests/helpers/over_verbs.py lists, and what is in tests/vm.
status=0
bash tests/vm/bare.sh || status=1
. tools/vm/rdma.sh && rdma_single || exit
. tests/vm/guest_pytest.sh
guest_pytest $(verbs_tests) || status=1
exit "$status"
