"""Two ends of connections whose peer vanishes without a goodbye: cut cables, dead machines. Run by tests/vm/guest.

lost_peer.py serve ADDRESS...              listens until it is killed, and says "listening"
lost_peer.py lose COMMAND ADDRESS...       connects, has calls and reads under way, runs the shell COMMAND that makes
                                           the peer vanish, and holds rrpc to its keep-alive time; with BACK, a command
                                           that has the peer there again, in the environment: then what that one holds
                                           of connections that vanished
"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

# The modules of the tests import each other by name.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "helpers"))

import lab_service
from guest_network import queue_pairs
from lab import settles, transient
from processes import eventually
from under_way import UnderWay, slowly

import rrpc

INTERVAL, TIMEOUT = slowly(4.0), slowly(7.0)  # an emulated machine may be away for seconds
SLACK = slowly(8.0)  # of an emulated machine
LIMIT = INTERVAL + TIMEOUT + SLACK
OPTIONS: dict[str, Any] = {"keepalive_interval": INTERVAL, "keepalive_timeout": TIMEOUT}
HELD = "lost"


def own_queue_pairs() -> int:
    """Those of this process. The kernel knows the thread that made one, as long as that lives: so nothing here is
    connected by the main thread, which has others do it."""
    threads = {int(thread) for thread in os.listdir("/proc/self/task")}
    return sum(1 for queue_pair in queue_pairs() if queue_pair.get("pid") in threads)


def other_queue_pairs() -> int:
    """Those of other processes, as far as this namespace shows them."""
    return len(queue_pairs()) - own_queue_pairs()


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
        return rrpc.connect(address, timeout=slowly(60.0), connect_timeout=slowly(20.0), **OPTIONS)
    except (rrpc.Unavailable, rrpc.DeadlineExceeded) as error:
        print(f"not yet: {error}", flush=True)
        time.sleep(0.5)
        return None


def begun(addresses: list[str]) -> tuple[dict[str, int], list[rrpc.Client], dict[str, UnderWay]]:
    """What rests where nothing is under way, and a client for each address with calls and reads under way. Begins again
    where an adapter gives a connection up, as it does in a machine that stands still for longer than it sends again."""
    for attempts_left in (2, 1, 0):
        clients = [connected(address) for address in addresses]
        idle = transient(rrpc.stats())
        try:
            at_work = {a: UnderWay(client, HELD) for a, client in zip(addresses, clients, strict=True)}
        except rrpc.Unavailable as error:
            print(f"not yet: {error}", flush=True)
            for client in clients:
                client.close()
            if not attempts_left:
                raise
        else:
            return idle, clients, at_work
    raise AssertionError


def lose(command: str, addresses: list[str]) -> None:
    idle, clients, at_work = begun(addresses)
    sys.stdout.flush()
    subprocess.run(command, shell=True, check=True)
    start = time.monotonic()
    for address, under_way in at_work.items():
        for what, error in under_way.errors(4 * LIMIT).items():
            print(f"{address}, {what}: after {time.monotonic() - start:.1f} s: {error}", flush=True)
    assert time.monotonic() - start < LIMIT
    settles(rrpc.stats, idle, 30.0)
    eventually(lambda: own_queue_pairs() == 0, 30.0, "queue pairs destroyed")
    for client in clients:
        client.close()
    print("all failed in time, and nothing is left", flush=True)


def left(command: str, addresses: list[str]) -> None:
    """The server's end of it once it is there again, while a handler is still at work and then: no memory, no queue
    pair, no connection."""
    subprocess.run(command, shell=True, check=True)
    for address in addresses:
        with connected(address) as client:
            eventually(lambda: other_queue_pairs() <= 1, LIMIT, "only the server's queue pair with us")
            client.call("Lab.release", HELD)
            eventually(lambda client=client: client.call("Lab.counts")["connections_open"] == 1, LIMIT)  # type: ignore[misc]
            nothing = {"exposures_live": 0, "bytes_exposed": 0, "pool_bytes_used": 0}
            settles(lambda client=client: client.call("Lab.counts"), nothing, LIMIT)  # type: ignore[misc]
    print("the server holds nothing of them", flush=True)


if __name__ == "__main__":
    match sys.argv[1]:
        case "serve":
            serve(sys.argv[2:])
        case "lose":
            with ThreadPoolExecutor(1) as pool:
                pool.submit(lose, sys.argv[2], sys.argv[3:]).result()
                if back := os.environ.get("BACK"):
                    pool.submit(left, back, sys.argv[3:]).result()
