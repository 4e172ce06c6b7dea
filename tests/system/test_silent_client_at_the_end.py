"""A server that stops while a client has fallen silent keeps nothing of it, also while the server's object is kept."""

import signal
import subprocess
import sys
import threading

import pytest
from lab_service import Lab
from processes import child_environment, eventually, patience

import rrpc

CLIENT = """
import sys, threading, rrpc
client = rrpc.connect(sys.argv[1], keepalive_interval=1.0, keepalive_timeout=1.0)
calls = [client.start("Lab.hold", name, 600.0) for name in ("first", "second")]
client.call("Lab.add", 1)
print("ready", flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize("transport", ["tcp", "rrpc"])
def test_its_connection_goes(transport: str) -> None:
    before = rrpc.stats()["connections_open"]
    server = rrpc.Server(
        Lab(), listen=f"{transport}://127.0.0.1:0", workers=3, keepalive_interval=1.0, keepalive_timeout=1.0
    ).start()
    command = [sys.executable, "-c", CLIENT, server.addresses[0]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=child_environment()) as client:
        try:
            assert client.stdout is not None
            assert client.stdout.readline() == b"ready\n"
            drain = threading.Thread(target=server.drain, args=(patience(20),))
            drain.start()
            client.send_signal(signal.SIGSTOP)
            Lab().release("first")
            drain.join()
            server.stop()
            eventually(lambda: rrpc.stats()["connections_open"] <= before, 5.0, "no connection")
        finally:
            client.kill()
    server.stop()  # it was kept so far
