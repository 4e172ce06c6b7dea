# In the guest: clients and servers in asyncio's own loop; what a transport has a part in.
. tests/vm/guest_pytest.sh
guest_pytest rxe -k "not uvloop and (calls_and_their_results or arrays or metadata or a_cancelled_task or stream_of_results or \
  streams_of_arguments or leaving_a_stream or both_kinds or given_up_cancels or dies_cancels or found_again or loses_no_call)" \
  tests/test_aio_client.py tests/test_aio_server.py tests/test_aio_streams.py tests/test_aio_channels.py
