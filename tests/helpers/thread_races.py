"""Threads that use the same things of rrpc's at the same time; `python thread_races.py CASE` says "end".

In a process of its own, since what a race may bring about is the process's end. Under ThreadSanitizer it says more.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import enum
import functools
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
from flow import generated
from flow_service import Flow
from numpy.typing import NDArray

import rrpc

THREADS = int(os.environ.get("RRPC_TEST_THREADS", "4"))
ROUNDS = int(os.environ.get("RRPC_TEST_ROUNDS", "40"))


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Mix:
    colours: list[Colour]
    by_name: dict[str, int]
    numbers: set[int]
    which: Literal["a", "b"]


@rrpc.service
class Race:
    @rrpc.method
    def add(self, a: int, b: int = 2) -> int:
        return a + b

    @rrpc.method
    def double(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return values * 2

    @rrpc.method
    def back(self, value: Any) -> Any:
        return value

    @rrpc.method
    def mix(self, mix: Mix) -> Mix:
        return mix

    @rrpc.method
    def said(self) -> dict[str, str]:
        return {name: str(value) for name, value in rrpc.context().metadata.items()}

    @rrpc.method
    def asks(self, threads: int) -> list[str]:
        """What its threads see of the call, each in a copy of its context."""
        seen: list[str] = []

        def ask() -> None:
            seen.append(rrpc.context().method)

        asking = [
            threading.Thread(target=contextvars.copy_context().run, args=(ask,)) for _ in range(threads)
        ]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join()
        return seen

    @rrpc.method
    def leaves(self) -> int:
        """Answers while its threads ask for the context."""

        def ask() -> None:
            with contextlib.suppress(RuntimeError):
                assert rrpc.context().method == "Race.leaves"

        for _ in range(2):
            threading.Thread(target=contextvars.copy_context().run, args=(ask,)).start()
        return 1


@rrpc.service
class Awaits:
    @rrpc.method
    async def later(self, value: int) -> int:
        await asyncio.sleep(0)
        return value


race_rpc = generated(Race, "race_rpc")
flow_rpc = generated(Flow, "race_flow_rpc")
awaits_rpc = generated(Awaits, "awaits_rpc")


def at_once(work: Callable[[int], object], threads: int = THREADS) -> None:
    """Has threads do ``work(number)``, all from the same moment on; raises what one of them raises."""
    barrier, errors = threading.Barrier(threads), list[BaseException]()

    def run(number: int) -> None:
        try:
            barrier.wait()
            work(number)
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if errors:
        raise errors[0]


@contextlib.contextmanager
def served(*services: object, **options: Any) -> Iterator[str]:
    with rrpc.Server(*services, listen=f"shm://rrpc-races-{os.getpid()}", **options) as server:
        yield server.addresses[0]


def use(client: Any, number: int, rounds: int = ROUNDS) -> None:
    """Plain calls of each kind."""
    large = np.full(20_000, float(number))
    point = race_rpc.Mix([race_rpc.Colour.RED], {"n": number}, {number, -1}, "b")
    for i in range(rounds):
        assert client.add(number, i) == number + i
        assert client.add(number, timeout=60.0, metadata={"who": "me"}) == number + 2
        assert (client.double(large) == 2.0 * number).all()
        assert client.mix(point) == point
        assert client.back([i, {"number": number}, (1.5, None)]) == [i, {"number": number}, (1.5, None)]
        assert client.add.start(number, i).result() == number + i


def one_client() -> None:
    with served(Race()) as address, race_rpc.RaceClient(address) as client:
        at_once(functools.partial(use, client))


def own_clients() -> None:
    def work(number: int) -> None:
        with race_rpc.RaceClient(address) as client:
            use(client, number)

    with served(Race(), workers=THREADS) as address:
        at_once(work)


def one_future() -> None:
    """Threads ask for the result of each future, by the core and by what Python takes over."""
    ended = threading.Semaphore(0)

    def ask(futures: list[Any], number: int) -> None:
        for i, future in enumerate(futures):
            if (i + number) % 3 == 0:
                future.add_done_callback(lambda _: ended.release())
            elif (i + number) % 3 == 1:
                assert future.exception() is None
            assert future.result() == [i]

    with served(Race()) as address, race_rpc.RaceClient(address) as client:
        for _ in range(ROUNDS):
            futures = [client.back.start([i]) for i in range(12)]
            at_once(functools.partial(ask, futures))
            assert all(future.result() is future.result() for future in futures)
        for _ in range(ROUNDS * THREADS * 4):
            assert ended.acquire(timeout=60.0)


def one_stream() -> None:
    """One thread sends, others receive, and another one closes what isn't at its end."""
    total = 20 * ROUNDS

    def work(stream: Any, got: list[int], number: int) -> None:
        if number == 0:
            for i in range(total):
                stream.send(i)
            stream.finish()
            return
        with contextlib.suppress(ValueError):  # another thread is at it
            got.extend(stream)

    def take(stream: Any, number: int) -> None:
        if number == 0:
            stream.close()
            return
        with contextlib.suppress(ValueError, RuntimeError, rrpc.Cancelled):
            for item, wanted in zip(stream, range(total), strict=False):
                assert item == wanted

    with served(Flow()) as address, flow_rpc.FlowClient(address) as client:
        got: list[int] = []
        at_once(functools.partial(work, client.sums.open(), got), 2)
        assert got == [i * (i + 1) // 2 for i in range(total)]
        for _ in range(ROUNDS):
            at_once(functools.partial(take, client.count(total)), 2)


def closes() -> None:
    """Clients are closed while threads call."""

    def work(client: Any, number: int) -> None:
        if number == 0:
            client.add(0)
            client.close()
            return
        with contextlib.suppress(rrpc.Unavailable, rrpc.Cancelled):
            for i in range(10_000):
                assert client.add(number, i) == number + i
                assert client.add.start(number, i).result() == number + i
            raise AssertionError("nobody closed it")

    with served(Race(), workers=2) as address:
        for _ in range(ROUNDS):
            at_once(functools.partial(work, race_rpc.RaceClient(address)))


def first_uses() -> None:
    """Threads are the first to use classes, whose plans are made then."""
    plans: list[Any] = []

    def work(module: Any, number: int) -> None:
        with module.RaceClient(address) as client:
            for _ in range(3):
                assert client.add(number) == number + 2
                assert client.mix(module.Mix([], {}, set(), "a")).which == "a"
            plans.append(client.add._plan)

    with served(Race(), workers=2) as address:
        for _ in range(ROUNDS // 2):
            plans.clear()
            at_once(functools.partial(work, generated(Race, "race_first_rpc")))
            assert len(set(map(id, plans))) == 1


def first_arrays() -> None:
    """Threads are the first to send arrays of each dtype."""
    dtypes = [np.dtype(code) for code in "?bBhHiIqQefdFD"] + [np.dtype(f">{code}") for code in "hiqfd"]

    def work(client: Any, number: int) -> None:
        for i in range(len(dtypes)):
            dtype = dtypes[(i + number) % len(dtypes)]
            sent = np.ones(3, dtype)
            got = client.back(sent)
            assert got.dtype == dtype
            assert (got == sent).all()

    with served(Race(), workers=2) as address:
        for _ in range(ROUNDS // 4):
            module = generated(Race, "race_first_rpc")
            with module.RaceClient(address) as client:
                client.add(1)
                at_once(functools.partial(work, client))


def changing() -> None:
    """Containers change while they are sent: what arrives is some state of theirs, or the call fails."""
    numbers, names, some = list(range(50)), {str(i): i for i in range(50)}, set(range(50))

    def change(i: int) -> None:
        numbers.pop()
        numbers.insert(0, i)
        del names[next(iter(names))]
        names[str(i)] = i
        some.discard(i % 50)
        some.add(i % 50)
        numbers.append(numbers.pop(0))

    def work(client: Any, number: int) -> None:
        if number == 0:
            for i in range(50 * ROUNDS):
                change(i)
            return
        for _ in range(2 * ROUNDS):
            with contextlib.suppress(rrpc.InvalidArgument, RuntimeError):
                mixed = client.mix(race_rpc.Mix([], names, some, "a"))
                assert all(name == str(value) for name, value in mixed.by_name.items())
                assert mixed.numbers <= set(range(50))
            with contextlib.suppress(rrpc.InvalidArgument, RuntimeError):
                assert {type(item) for item in client.back(numbers)} <= {int}
            with contextlib.suppress(rrpc.InvalidArgument, RuntimeError, KeyError):
                client.add(1, metadata=names)

    with served(Race(), workers=2) as address, race_rpc.RaceClient(address) as client:
        at_once(functools.partial(work, client))
        assert client.add(1) == 3


def contexts() -> None:
    def work(client: Any, number: int) -> None:
        for _ in range(ROUNDS // 4):
            assert client.asks(3) == ["Race.asks"] * 3
            assert client.leaves() == 1

    with served(Race(), workers=THREADS) as address, race_rpc.RaceClient(address) as client:
        at_once(functools.partial(work, client))


def in_python() -> None:
    """Calls that Python packs, and metadata that it does."""

    def work(client: Any, number: int) -> None:
        text = str(number) * 200
        for i in range(ROUNDS):
            assert client.call("Race.back", {text: [i, text]}) == {text: [i, text]}
            assert client.call("Race.said", metadata={"a": text, "b": str(i)}) == {"a": text, "b": str(i)}
            assert client.call("Race.said", metadata={"a": [text, "x"]}) == {"a": text}

    with served(Race(), workers=2) as address, rrpc.connect(address) as client:
        at_once(functools.partial(work, client))


def same_arrays() -> None:
    """Threads send the same arrays, which are known by their owners, and drop them."""
    arrays = [np.full(20_000, float(i)) for i in range(8)]

    def work(client: Any, number: int) -> None:
        for i in range(ROUNDS):
            assert (client.double(arrays[i % 8][5:]) == 2.0 * (i % 8)).all()
            assert (client.double(np.full(20_000, float(number))) == 2.0 * number).all()

    with served(Race(), workers=2) as address, race_rpc.RaceClient(address) as client:
        at_once(functools.partial(work, client))


def checked_arrays() -> None:
    """The check for arrays that change is switched while arrays are sent."""
    values = np.ones(20_000)

    def work(client: Any, number: int) -> None:
        for i in range(2 * ROUNDS):
            if number == 0:
                rrpc.check_arrays(i % 2 == 0)
            else:
                assert client.double(values)[0] == 2.0

    with served(Race(), workers=2) as address, race_rpc.RaceClient(address) as client:
        at_once(functools.partial(work, client))
        rrpc.check_arrays(False)


def collected() -> None:
    """Garbage collections come amid calls, and cycles with clients are garbage."""

    def work(number: int) -> None:
        if number == 0:
            for _ in range(ROUNDS):
                gc.collect()
            return
        for i in range(ROUNDS // 4):
            with race_rpc.RaceClient(address) as client:
                client.own = client.add  # a cycle
                assert client.own(number, i) == number + i
                kept = [client.back.start([i]), client.add.start(i, i)]
                kept.append(kept)
                assert kept[0].result() == [i]

    with served(Race(), workers=2) as address:
        at_once(work)


def loops() -> None:
    """Loops in several threads share a server, whose handlers are a loop's too; it is stopped at the end."""

    async def call(number: int) -> None:
        async with awaits_rpc.AsyncAwaitsClient(address) as client:
            for i in range(ROUNDS // 4):
                values = [number * 1000 + i * 10 + j for j in range(8)]
                assert await asyncio.gather(*map(client.later, values)) == values

    with served(Awaits()) as address:
        at_once(lambda number: asyncio.run(call(number)))


CASES: dict[str, Callable[[], None]] = {
    case.__name__: case
    for case in (
        one_client,
        own_clients,
        one_future,
        one_stream,
        closes,
        first_uses,
        first_arrays,
        changing,
        contexts,
        in_python,
        same_arrays,
        checked_arrays,
        collected,
        loops,
    )
}


def main() -> None:
    sys.setswitchinterval(1e-5)
    for name in sys.argv[1:] or CASES:
        CASES[name]()
    print("end")


if __name__ == "__main__":
    main()
