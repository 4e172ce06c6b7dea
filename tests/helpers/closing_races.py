"""One thread ends what others are in the midst of using, many times over; `python closing_races.py WHAT` says "end".

In a process of its own, since what a race may bring about is the process's end.
"""

import sys
import threading
from collections.abc import Callable

import core_server
from hand_loop import Collected, HandLoop

import rrpc
from rrpc import _core
from rrpc._options import merged

Use = Callable[[_core.Client], object]
ROUNDS = 60
THREADS = 3


def call(client: _core.Client) -> None:
    client.call(b"echo", b"", None, None, None)


def start(client: _core.Client) -> None:
    client.start(b"echo", b"", None, None, None).result()


def start_in_loop(client: _core.Client) -> None:
    loop, ended = HandLoop(), Collected()
    client.start_in_loop(loop.driver, ended, b"echo", b"", None, None, None)
    while not ended:
        loop.round()
    if ended[0][0] is None:
        raise ended[0][1]


def stream(client: _core.Client) -> None:
    client.open(b"count", b"1", None, None, b"", 4).result()


def facts(client: _core.Client) -> None:
    client.info()
    client.peer_hello()
    client.stats()


USES: dict[str, Use] = {
    "call": call,
    "start": start,
    "start_in_loop": start_in_loop,
    "open": stream,
    "info": facts,
}


def end_amid(use: Use, client: _core.Client, end: Callable[[], None]) -> None:
    under_way = [threading.Event() for _ in range(THREADS)]

    def go_on(first_done: threading.Event) -> None:
        try:
            while True:
                use(client)
                first_done.set()
        except (rrpc.Unavailable, rrpc.Cancelled):
            first_done.set()

    threads = [threading.Thread(target=go_on, args=(event,)) for event in under_way]
    for thread in threads:
        thread.start()
    for event in under_way:
        assert event.wait(20.0)
    end()
    for thread in threads:
        thread.join()


def main() -> None:
    sys.setswitchinterval(1e-6)
    server = _core.Server(merged({}))
    address = server.listen("tcp://127.0.0.1:0")
    core_server.workers(server)
    for _ in range(ROUNDS):
        client = _core.Client(address, merged({}), 20.0)
        end_amid(USES[sys.argv[1]], client, client.close)
    server.stop()
    print("end")


if __name__ == "__main__":
    main()
