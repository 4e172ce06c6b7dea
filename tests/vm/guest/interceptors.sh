# In the guest: interceptors in every style, and traces. An adapter makes no difference to them: one of the two.
. tests/vm/guest_pytest.sh
guest_pytest rxe -k "not uvloop" tests/test_client_interceptors.py tests/test_server_interceptors.py tests/test_stream_interceptors.py \
  tests/test_aio_stream_interceptors.py tests/test_ready_interceptors.py tests/test_otel.py tests/test_tracing.py tests/test_tracing_styles.py
