# In the guest: the provider conformance suite over each adapter, hostile peers, and addresses that can't be had. Tests that
# move many bytes are left out by a socket (rxe_socket), where queue pairs are those of rxe once they are connected.
. tools/vm/rdma.sh && rdma_single || exit
volume="AReadThatOverlapsARevocationNeverDeliversLaterBytes ALargeRead ARevokedWriteChangesNothingAfterwards BothEndsReadAtOnce
  SendsReadsAndWritesMixInOrder AnOldKeyStaysDeadWhenTheRangeIsExposedAgain EveryByteIsRightWhileThePoolIsTrimmed
  GuessedKeysAreRefused AThousandDisconnectsLoseNoReceive"
exec build/release/verbs_conformance --gtest_filter="*-$(printf '*.%s/rxe_socket:' $volume)"
