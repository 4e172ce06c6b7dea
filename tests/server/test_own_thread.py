"""Callbacks run on whatever thread: a server stops, and ends, on the one that polls for it, too."""

import subprocess
import sys

import pytest
from processes import child_environment, patience

import rrpc

# Its only worker is in the handler, so that nobody but the polling thread is there for the callback.
STOPPED = """
import threading
import rrpc

def stop():
    assert type(threading.current_thread()).__name__ == "_DummyThread", threading.current_thread()
    assert not server.stop(timeout=0.0), "the handler runs"
    stopped.set()

@rrpc.service
class Held:
    @rrpc.method
    def hold(self) -> None:
        rrpc.context().add_cancel_callback(stop)
        print("held", flush=True)
        stopped.wait(60)

stopped = threading.Event()
server = rrpc.serve(Held(), listen="tcp://127.0.0.1:0", workers=1)
print(server.addresses[0], flush=True)
assert stopped.wait(60)
assert server.wait(60)
"""
LET_GO = """
import os, threading
from processes import eventually
from rrpc import _core
from rrpc._options import merged

def let_go():
    assert type(threading.current_thread()).__name__ == "_DummyThread", threading.current_thread()
    servers.clear()
    gone.set()

def threads():
    return len(os.listdir("/proc/self/task"))

gone = threading.Event()
before = threads()
servers = [_core.Server(merged({}))]
print(servers[0].listen("tcp://127.0.0.1:0"), flush=True)
handle = servers[0].next(60.0)[0]
servers[0].on_cancel(handle, let_go)
print("held", flush=True)
assert gone.wait(60)
eventually(lambda: threads() == before, 60.0, "the end of its threads")
"""


@pytest.mark.parametrize("program", [STOPPED, LET_GO], ids=["stopped", "let go"])
def test_servers_end_on_their_own_thread(program: str) -> None:
    command = [sys.executable, "-c", program]
    environment = child_environment(PYTHONPATH=":".join(sys.path))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        with rrpc.connect(process.stdout.readline().strip()) as client:
            call = client.start("Held.hold")
            assert process.stdout.readline() == "held\n"
            call.cancel()
            assert process.wait(patience(60)) == 0
