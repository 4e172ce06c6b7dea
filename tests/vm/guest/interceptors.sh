# In the guest: interceptors at both ends, of unary calls and of streams, and traces of every style.
. tests/vm/guest_pytest.sh
guest_pytest rxe -k "not uvloop and not futures" tests/test_client_interceptors.py tests/test_server_interceptors.py \
  tests/test_stream_interceptors.py tests/test_aio_stream_interceptors.py tests/test_tracing_styles.py
