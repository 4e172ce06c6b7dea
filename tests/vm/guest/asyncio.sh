# In the guest: clients and servers in asyncio's own loop, over both adapters.
. tests/vm/guest_pytest.sh
guest_pytest rxe,siw -k "not uvloop" tests/test_aio_client.py tests/test_aio_server.py tests/test_aio_streams.py tests/test_aio_channels.py
