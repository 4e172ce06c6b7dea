"""The end of an interpreter, and Ctrl-C: prompt, clean, whatever is open."""

import signal
import subprocess
import sys
import time

import pytest
from lab import LabServer, still_answers
from processes import child_environment, run_python

CLIENT = "client = rrpc.connect(address)\n"
HELD = "held = client.start('Lab.hold', 'exit', 1.0)\n"
SERVER = "server = rrpc.serve(Lab(), listen='tcp://127.0.0.1:0')\n"
OPEN_AT_EXIT = {
    "a client": CLIENT,
    "a client with a result": CLIENT + "a = client.call('Lab.make', 100_000)",
    "a call in flight": CLIENT + HELD,
    "arrays in flight": CLIENT + "f = [client.start('Lab.echo', np.ones(100_000)) for _ in range(50)]",
    "a callback": CLIENT + HELD + "held.add_done_callback(print)",
    "a callback that runs": CLIENT + "running = threading.Event()\n"
    "def run(future):\n    running.set()\n    while True: time.sleep(0.001)\n"
    "client.start('Lab.hold', 'callback', 0.2).add_done_callback(run)\nrunning.wait()\n"
    # The interpreter lets go of the GIL while it ends, and the callback comes back for that.
    "class Out:\n    write = sys.stdout.write\n    def flush(self): real.flush(); time.sleep(0.1)\n"
    "real = sys.stdout; sys.stdout = Out()",
    "a waiting daemon": CLIENT
    + HELD
    + "threading.Thread(target=held.result, daemon=True).start(); time.sleep(0.1)",
    "many busy daemons": CLIENT + "def busy(use):\n    while True: use('Lab.add', 1)\n"
    "for use in (client.call, lambda *call: client.start(*call).result()) * 3:\n"
    "    threading.Thread(target=busy, args=(use,), daemon=True).start()\ntime.sleep(0.1)",
    "a stream that is fed": CLIENT + "from itertools import repeat\nfrom flow_service import Flow\n"
    "from flow import flow_rpc\nserver = rrpc.serve(Flow(), listen='tcp://127.0.0.1:0')\n"
    "flow = flow_rpc.FlowClient(server.addresses[0])\nanswers = flow.sums(repeat(1))\nnext(answers)",
    "a call of one who goes": "class Last:\n    connect = rrpc.connect\n"
    "    def __del__(self):\n        with self.connect(address, timeout=5.0) as client: client.call('Lab.add', 1)\n"
    "last = Last()\nLast.connect = staticmethod(rrpc.connect)",
    "a closed client": CLIENT + "client.close(); gc.disable()",
    "connecting": "import socket\n"
    "silent = socket.create_server(('127.0.0.1', 0))\n"
    "lazy = rrpc.Client(f'tcp://127.0.0.1:{silent.getsockname()[1]}', lazy=True)\n"
    "held = lazy.start('Lab.add', 1)",
    "waiting for a server": "lazy = rrpc.Client('shm:///nobody', lazy=True, wait_for_ready=True)\n"
    "held = [lazy.start('Lab.add', 1, timeout=100.0) for _ in range(10)]",
    "a retry that sleeps": "policy = rrpc.RetryPolicy(initial_backoff=60.0, max_backoff=60.0)\n"
    "lazy = rrpc.Client('shm:///nobody', lazy=True, retry=policy)\n"
    "held = lazy.start('Lab.add', 1)\n",
    "cycles": CLIENT + HELD + "x = [client, held]; x.append(x); del x, client, held",
    "pool memory": "a = rrpc.zeros(1 << 20)",
    "a server": SERVER,
    "a server in use": SERVER + "client = rrpc.connect(server.addresses[0]); client.call('Lab.add', 1)",
    "a stopped server": SERVER + "server.stop()",
    "a drained server": "from aio_service import Mixed\n"
    "server = rrpc.serve(Mixed(), listen='tcp://127.0.0.1:0')\n"
    "with rrpc.connect(server.addresses[0]) as client: client.call('Mixed.echo', 'a')\n"
    "server.drain(); del server; gc.collect()",
    "a server never started": "server = rrpc.Server(Lab(), listen='tcp://127.0.0.1:0')",
}


# Those without a connection over the transport in question are alike over all.
CONNECTED = [
    what for what, code in OPEN_AT_EXIT.items() if code.startswith(CLIENT) or "connect(address" in code
]


@pytest.mark.parametrize("what", CONNECTED)
def test_exit_with_things_open(lab_address: str, what: str) -> None:
    _exits(lab_address, what)


@pytest.mark.parametrize("what", [what for what in OPEN_AT_EXIT if what not in CONNECTED])
def test_exit_with_other_things_open(lab_server: LabServer, what: str) -> None:
    _exits(lab_server.address("tcp"), what)


def _exits(lab_address: str, what: str) -> None:
    code = f"""
import gc, sys, threading, time
sys.path.insert(0, {str(__file__.rsplit("/", 1)[0])!r})
import numpy as np, rrpc
from lab_service import Lab
address = sys.argv[1]
{OPEN_AT_EXIT[what]}
print("end", flush=True)
"""
    start = time.monotonic()
    done = run_python(code, lab_address, timeout=60)
    assert done.stdout == "end\n"
    assert done.stderr == ""
    assert time.monotonic() - start < 40  # what is open would take a minute, or for ever
    still_answers(lab_address)


WAITING = {
    "call": "client.call('Lab.hold', name, 3.0)",
    "result": "client.start('Lab.hold', name, 3.0).result()",
    "server": "rrpc.serve(Lab(), listen='tcp://127.0.0.1:0').wait()",
    "draining": "server = rrpc.serve(Lab(), listen='tcp://127.0.0.1:0')\n"
    "    own = rrpc.connect(server.addresses[0])\n"
    "    held = own.start('Lab.hold', name, 20.0)\n"
    "    while not own.call('Lab.holding', name): pass\n"
    "    server.drain()",
    "callbacks": "def again(f): client.start('Lab.add', 1).add_done_callback(again)\n"
    "    again(None)\n"
    "    client.call('Lab.hold', name, 3.0)",
}


@pytest.mark.parametrize("what", WAITING)
def test_an_interrupt_ends_a_wait(lab_address: str, what: str) -> None:
    code = f"""
import sys, time
sys.path.insert(0, {str(__file__.rsplit("/", 1)[0])!r})
import rrpc
from lab_service import Lab
client = rrpc.connect(sys.argv[1])
name = "interrupt"
print("ready", flush=True)
try:
    {WAITING[what]}
except KeyboardInterrupt:
    assert client.call("Lab.add", 1, timeout=10) == 2
    print("interrupted", flush=True)
    import os
    os._exit(0)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, lab_address], stdout=subprocess.PIPE, text=True, env=child_environment()
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)  # into the wait; before it the test would show less, not fail
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        assert time.monotonic() - start < 10.0
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
