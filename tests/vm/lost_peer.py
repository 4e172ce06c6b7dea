"""Two ends of connections whose peer vanishes without a goodbye: cut cables, dead machines. Run by tests/vm/guest.

lost_peer.py serve ADDRESS...              listens until it is killed, and says "listening"
lost_peer.py lose COMMAND ADDRESS...       connects, has calls and reads under way, runs the shell COMMAND that makes
                                           the peer vanish, and holds rrpc to its keep-alive time
lost_peer.py left ADDRESS...               a peer that is there again: what it holds of connections that vanished
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import lab_service
from lab import settles, transient
from processes import eventually

import rrpc

INTERVAL = TIMEOUT = 4.0
SLACK = 8.0  # of an emulated machine
LIMIT = INTERVAL + TIMEOUT + SLACK
OPTIONS: dict[str, Any] = {"keepalive_interval": INTERVAL, "keepalive_timeout": TIMEOUT}
LARGE = 24 << 20  # more than goes over these wires before they are cut


def own_queue_pairs() -> int:
    command = ["rdma", "-j", "resource", "show", "qp"]
    shown = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return sum(1 for queue_pair in shown if queue_pair.get("pid") == os.getpid())


def serve(addresses: list[str]) -> None:
    server = rrpc.serve(lab_service.Lab(), listen=addresses[0], **OPTIONS)
    for address in addresses[1:]:
        server.listen(address)
    print("listening", flush=True)
    server.wait()


def connected(address: str) -> rrpc.Client:
    """Once the server is there: in another machine it takes its time to start."""
    client = eventually(lambda: attempt(address), 120.0, f"a connection to {address}")
    assert client is not None
    return client


def attempt(address: str) -> rrpc.Client | None:
    try:
        return rrpc.connect(address, timeout=60.0, connect_timeout=20.0, **OPTIONS)
    except (rrpc.Unavailable, rrpc.DeadlineExceeded) as error:
        print(f"not yet: {error}", flush=True)
        return None


def lose(command: str, addresses: list[str]) -> None:
    clients = [connected(address) for address in addresses]
    idle = transient(rrpc.stats())
    large = np.ones(LARGE, np.uint8)
    futures: list[tuple[str, rrpc.Future[Any]]] = []
    for address, client in zip(addresses, clients, strict=True):
        assert client.call("Lab.add", 1) == 2
        futures.append((f"{address}, a call", client.start("Lab.hold", "lost", 600.0)))
        futures.append((f"{address}, an argument", client.start("Lab.size", large, timeout=600.0)))
        futures.append((f"{address}, a result", client.start("Lab.make", LARGE, timeout=600.0)))
        eventually(lambda client=client: client.call("Lab.holding", "lost"), 60.0)  # type: ignore[misc]
    sys.stdout.flush()
    subprocess.run(command, shell=True, check=True)
    start = time.monotonic()
    for what, future in futures:
        error = future.exception(timeout=4 * LIMIT)
        took = time.monotonic() - start
        print(f"{what}: {type(error).__name__} after {took:.1f} s: {error}", flush=True)
        assert isinstance(error, rrpc.Unavailable)
        assert "\n" not in str(error)
        assert took < LIMIT
    del futures, future
    settles(rrpc.stats, idle, 30.0)
    for client in clients:
        client.close()
    eventually(lambda: own_queue_pairs() == 0, 30.0, "queue pairs destroyed")
    print("all failed in time, and nothing is left", flush=True)


def left(addresses: list[str]) -> None:
    """The server's end of it: only this connection, no memory exposed or used."""
    for address in addresses:
        with connected(address) as client:
            eventually(lambda client=client: client.call("Lab.counts")["connections_open"] == 1, LIMIT)  # type: ignore[misc]
            client.call("Lab.release", "lost")
            nothing = {"exposures_live": 0, "bytes_exposed": 0, "pool_bytes_used": 0}
            settles(lambda client=client: client.call("Lab.counts"), nothing, LIMIT)  # type: ignore[misc]
    print("the server holds nothing of them", flush=True)


if __name__ == "__main__":
    match sys.argv[1]:
        case "serve":
            serve(sys.argv[2:])
        case "lose":
            lose(sys.argv[2], sys.argv[3:])
        case "left":
            left(sys.argv[2:])
