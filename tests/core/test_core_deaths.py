"""Calls both ways, cancelled and cut off by a process's death wherever it comes: memory, calls and exposures are zero
afterwards, and the survivor goes on."""

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import core_server
import pytest
from core_server import serving
from lab import address_to_listen_on, settles
from processes import child_environment, eventually

import rrpc
from rrpc import _core
from rrpc._options import merged

# A client that serves. It starts calls, nested both ways and with large buffers, and cancels some, for ever.
CALLER = """
import random, sys
import core_server
import rrpc
from rrpc import _core
from rrpc._options import merged
rng = random.Random(int(sys.argv[2]))
server = _core.Server(merged({}))
core_server.workers(server)
client = _core.Client(sys.argv[1], merged({}), 20.0, server)
print("connected", flush=True)
while True:
    calls = []
    for _ in range(rng.randrange(1, 6)):
        method = rng.choice([b"down", b"echo"])
        buffers = [bytearray(rng.choice([50_000, 3_000_000]))] if rng.random() < 0.7 else None
        timeout = rng.choice([None, 0.001, 5.0])
        calls.append(client.start(method, b"%d" % rng.randrange(3), buffers, None, timeout, b"m" * rng.randrange(100)))
    for call in calls:
        if rng.random() < 0.3:
            call.cancel()
    for call in calls:
        try:
            call.result()
        except rrpc.RpcError:
            pass
"""
ZERO = {"exposures_live": 0, "bytes_exposed": 0, "pool_bytes_used": 0}
LIVES = 10

pytestmark = pytest.mark.slow


@contextmanager
def calling(address: str, seed: int) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", CALLER, address, str(seed)]
    environment = child_environment()
    environment["PYTHONPATH"] += f":{Path(__file__).parent}"
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "connected\n"
        yield process
        process.kill()


def _some_time(rng: random.Random) -> None:
    """Until the moment that a seed has death come at, which is any."""
    time.sleep(rng.uniform(0, 0.05))


def _over(client: _core.Client) -> bool:
    return not client.usable() and client.calls_in_flight() == 0


def test_a_server_outlives_its_clients(transport: str, short_tmp: Path) -> None:
    server = _core.Server(merged({}))
    core_server.workers(server)
    address = server.listen(address_to_listen_on(transport, f"{short_tmp}/here.sock"))
    for seed in range(LIVES):
        with calling(address, seed) as client:
            _some_time(random.Random(seed))
            client.kill()
        eventually(lambda: server.stats() == {"connections": 0, "calls_running": 0, "calls_waiting": 0})
        settles(_core.stats, ZERO)
    server.stop()


def test_a_client_outlives_its_servers(transport: str, short_tmp: Path) -> None:
    own = _core.Server(merged({}))
    core_server.workers(own)
    for seed in range(LIVES):
        rng = random.Random(seed)
        with serving(f"{short_tmp}/{seed}.sock") as (addresses, server):
            client = _core.Client(addresses[transport], merged({}), 20.0, own)
            calls = [
                client.start(b"down", b"%d" % (i % 4), [bytearray(3_000_000)], None, None) for i in range(6)
            ]
            _some_time(rng)
            calls[0].cancel()
            server.kill()
        for call in calls:
            with suppress(rrpc.Unavailable, rrpc.Cancelled):
                call.result(20.0)
        eventually(partial(_over, client), what="the client's calls to be over")
        del calls, call
        client.close()
        eventually(lambda: own.stats() == {"connections": 0, "calls_running": 0, "calls_waiting": 0})
        settles(_core.stats, ZERO)
    own.stop()
