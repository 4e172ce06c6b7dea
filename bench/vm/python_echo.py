"""The same echo through Python: `serve ADDRESS POLL`, or `echo ADDRESS POLL COUNT`, which prints the median in µs."""

import statistics
import sys
import threading
import time

import rrpc

from bench.peers.rrpc_client import BenchClient
from bench.peers.rrpc_service import Bench

PAYLOAD = b"0123456789abcdef0123456789abcdef"


def serve(address: str, poll: str) -> None:
    with rrpc.Server(Bench(), listen=address, workers=1, poll=poll) as server:
        print(f"listening on {server.addresses[0]}", flush=True)
        threading.Event().wait()


def echo(address: str, poll: str, count: int) -> None:
    round_trips_us = []
    with BenchClient(address, poll=poll) as client:
        for i in range(-(count // 10), count):
            start = time.perf_counter_ns()
            assert client.echo(PAYLOAD) == PAYLOAD
            if i >= 0:
                round_trips_us.append((time.perf_counter_ns() - start) / 1e3)
    print(f"{statistics.median(round_trips_us):.2f}")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], sys.argv[3])
    else:
        echo(sys.argv[2], sys.argv[3], int(sys.argv[4]))
