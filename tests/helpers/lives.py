"""Clients and servers amid calls of every type, here or in processes that end; each is a blocking or an asyncio one."""

import asyncio
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import pytest
from busy_service import Busy, blocks
from fleet import Nursery
from flow import flow_rpc
from flow_service import Flow
from processes import patience

import rrpc

T = TypeVar("T")
STYLES = ("blocking", "asyncio")
CALLERS = 6
ARRAYS = [np.full(nbytes, 7, np.uint8) for nbytes in (100, 20_000, 1_000_000)]
WORKERS = 3 * CALLERS  # a call back that is called back has three
OPTIONS = {"stream_window_items": 16, "stream_window_bytes": 1 << 20}
PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); import lives; lives.nurse()"

# What a caller does, over and over: takes a client, a number below 100 and an array.
Action = Callable[[Any, int, Any], Any]


def _some(client: Any, n: int, array: Any) -> None:
    futures = [client.start("Busy.echo", array) for _ in range(4)]
    futures[n % 4].cancel()
    for future in futures:
        with suppress(rrpc.Cancelled):
            future.result()


def _held(client: Any, n: int, array: Any) -> None:
    with suppress(rrpc.DeadlineExceeded):
        client.call(("Busy.hold", "Busy.hold_later")[n % 2], timeout=n / 10_000)


def _left(client: Any, n: int, array: Any) -> None:
    with client.blocks(1 << 40, array.nbytes) as stream:
        list(islice(stream, n))


def _sent(client: Any, n: int, array: Any) -> None:
    with client.weigh.open() as stream:
        for block in blocks(n, array.nbytes):
            stream.send(block)
        if n % 2:
            stream.finish()


def _exchanged(client: Any, n: int, array: Any) -> None:
    with client.sums_later.open() as stream:
        for i in range(n):
            stream.send(i)
            next(stream)


BLOCKING: dict[str, list[Action]] = {
    "unary": [
        lambda client, n, array: client.call("Busy.echo", n),
        lambda client, n, array: client.call("Busy.echo_later", array),
        lambda client, n, array: client.call("Busy.echo", array, out=np.empty_like(array)),
        _some,
        _held,
    ],
    "streams": [
        lambda client, n, array: list(client.count(50 * n)),
        lambda client, n, array: list(client.later(50 * n)),
        _left,
        lambda client, n, array: client.add_later(range(50 * n)),
        lambda client, n, array: client.weigh(blocks(n, array.nbytes)),
        _sent,
        lambda client, n, array: list(client.sums(range(20 * n))),
        _exchanged,
    ],
    "callbacks": [
        lambda client, n, array: client.call("Busy.back", n % 3, array),
        lambda client, n, array: client.call("Busy.back_later", n % 5, array),
        lambda client, n, array: client.call("Busy.follow", n, array.nbytes),
        lambda client, n, array: client.call("Busy.follow_later", n, array.nbytes),
        lambda client, n, array: client.call("Busy.feed", n, array.nbytes),
        lambda client, n, array: client.call("Busy.feed_later", n, array.nbytes),
    ],
}


async def _some_later(client: Any, n: int, array: Any) -> None:
    futures = [client.start("Busy.echo_later", array) for _ in range(4)]
    futures[n % 4].cancel()
    for result in await asyncio.gather(*futures, return_exceptions=True):
        if isinstance(result, rrpc.RpcError):
            raise result


async def _held_later(client: Any, n: int, array: Any) -> None:
    with suppress(rrpc.DeadlineExceeded):
        await client.call(("Busy.hold", "Busy.hold_later")[n % 2], timeout=n / 10_000)


async def _taken_later(stream: Any, most: int = 1 << 40) -> None:
    async with stream:
        async for _ in stream:
            most -= 1
            if most < 0:
                break


async def _sent_later(client: Any, n: int, array: Any) -> None:
    async with client.weigh.open() as stream:
        for block in blocks(n, array.nbytes):
            await stream.send(block)
        if n % 2:
            await stream.finish()


async def _exchanged_later(client: Any, n: int, array: Any) -> None:
    async with client.sums.open() as stream:
        for i in range(n):
            await stream.send(i)
            await stream.__anext__()


ASYNCIO: dict[str, list[Action]] = {
    "unary": [
        *BLOCKING["unary"][:3],  # these give futures to wait for
        _some_later,
        _held_later,
    ],
    "streams": [
        lambda client, n, array: _taken_later(client.count(50 * n)),
        lambda client, n, array: _taken_later(client.later(50 * n)),
        lambda client, n, array: _taken_later(client.blocks(1 << 40, array.nbytes), n),
        *BLOCKING["streams"][3:5],
        _sent_later,
        lambda client, n, array: _taken_later(client.sums_later(range(20 * n))),
        _exchanged_later,
    ],
    "callbacks": BLOCKING["callbacks"],
}
KINDS = tuple(BLOCKING)
_FOR_EVER = 1 << 40
# Those that don't end unless they are given up.
ENDLESS: dict[str, list[Action]] = {
    "unary": [
        lambda client, n, array: client.call("Busy.hold"),
        lambda client, n, array: client.call("Busy.hold_later"),
    ],
    "streams": [
        lambda client, n, array: _taken_later(client.count(_FOR_EVER)),
        lambda client, n, array: client.add_later(range(_FOR_EVER)),
        lambda client, n, array: _taken_later(client.sums(range(_FOR_EVER))),
    ],
    "callbacks": [
        lambda client, n, array: client.call("Busy.follow", _FOR_EVER, array.nbytes),
        lambda client, n, array: client.call("Busy.follow_later", _FOR_EVER, array.nbytes),
        lambda client, n, array: client.call("Busy.feed", _FOR_EVER, array.nbytes),
        lambda client, n, array: client.call("Busy.feed_later", _FOR_EVER, array.nbytes),
    ],
}


def drawn(actions: list[Action], chance: random.Random) -> Callable[[Any], Any]:
    """One of the actions, to be done with a client."""
    action, n, array = chance.choice(actions), chance.randrange(1, 100), chance.choice(ARRAYS)
    return lambda client: action(client, n, array)


class BlockingEnd:
    """A server, which may listen, and clients that serve with it, in threads. A context manager."""

    def __init__(self, *listen: str) -> None:
        self._server = rrpc.Server(Busy(), Flow(), listen=listen, workers=WORKERS).start()
        self.addresses = self._server.addresses
        self.failures: list[str] = []
        """What callers ended with."""
        self._client: Any = None

    def counts(self) -> dict[str, int]:
        """What is under way."""
        return self._server.stats() | {"handlers": len(self._server.running())}

    def tasks(self) -> int:
        return threading.active_count()

    def call(self, address: str, kind: str, seed: int) -> None:
        """Connect, and have callers call until that fails."""
        self.failures.clear()
        self._client = flow_rpc.FlowClient(address, serve=self._server, **OPTIONS)
        for number in range(CALLERS):
            threading.Thread(target=self._caller, args=(kind, random.Random(seed * CALLERS + number))).start()

    def _caller(self, kind: str, chance: random.Random) -> None:
        try:
            while True:
                drawn(BLOCKING[kind], chance)(self._client)
        except BaseException as error:
            self.failures.append(f"{type(error).__name__}: {error}")  # its frames would keep arrays

    def over(self) -> bool:
        """Whether all of them have ended."""
        return len(self.failures) == CALLERS

    def leave(self) -> None:
        """Close the client."""
        self._client.close()

    def __enter__(self) -> "BlockingEnd":
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._client is not None:
            self._client.close()
        self._server.stop()


class AsyncioEnd:
    """The same in an event loop."""

    def __init__(self, *listen: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._server = self._run(self._serve(listen))
        self.addresses = self._server.addresses
        self.failures: list[str] = []
        self._client: Any = None

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(patience(30))

    async def _serve(self, listen: tuple[str, ...]) -> rrpc.aio.Server:
        return await rrpc.aio.serve(Busy(), Flow(), listen=listen, workers=WORKERS)

    def counts(self) -> dict[str, int]:
        return self._server.stats() | {"handlers": len(self._server.running())}

    def tasks(self) -> int:
        """Those that wait for a handler to run don't count: they are used again."""
        names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks(self._loop)]
        return threading.active_count() + len(names) - names.count("_Runner.run")

    def call(self, address: str, kind: str, seed: int) -> None:
        self.failures.clear()
        self._run(self._call(address, kind, seed))

    async def _call(self, address: str, kind: str, seed: int) -> None:
        self._client = await flow_rpc.AsyncFlowClient(address, serve=self._server, **OPTIONS)
        self._callers = {
            asyncio.ensure_future(self._caller(kind, random.Random(seed * CALLERS + number)))
            for number in range(CALLERS)
        }

    async def _caller(self, kind: str, chance: random.Random) -> None:
        try:
            while True:
                await drawn(ASYNCIO[kind], chance)(self._client)
        except BaseException as error:
            self.failures.append(f"{type(error).__name__}: {error}")

    def over(self) -> bool:
        return len(self.failures) == CALLERS

    def leave(self) -> None:
        self._run(self._client.close())
        self._callers.clear()

    def __enter__(self) -> "AsyncioEnd":
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._client is not None:
            self._run(self._client.close())
        self._run(self._server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


ENDS: dict[str, Callable[..., Any]] = {"blocking": BlockingEnd, "asyncio": AsyncioEnd}


def nurse() -> None:
    """In the process that others are forked from: begins a life for each line, and says its pid and address."""
    for line in sys.stdin:
        style, address, kind, seed = line.split()
        if os.fork() == 0:
            _live(style, address, kind, int(seed))
        _reap()


def _live(style: str, address: str, kind: str, seed: int) -> None:
    if kind == "server":
        end = ENDS[style](address)
    else:
        end = ENDS[style]()
        end.call(address, kind, seed)
    os.write(1, f"{os.getpid()} {(*end.addresses, '-')[0]}\n".encode())
    while True:
        time.sleep(60)


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


class Life:
    """A process that serves or calls until it is killed."""

    def __init__(self, nursery: Nursery, style: str, address: str, kind: str, seed: int) -> None:
        self.pid, self.address = nursery.begin(f"{style} {address} {kind} {seed}")
        self._lives = True

    def kill(self) -> None:
        """No goodbye; once."""
        if self._lives:
            os.kill(self.pid, signal.SIGKILL)
        self._lives = False


@pytest.fixture(scope="session")
def maternity() -> Iterator[Callable[..., Life]]:
    """Begins lives: ``maternity(style, address, "server")``, ``maternity(style, address, "unary", seed)``."""
    lives: list[Life] = []
    nursery = Nursery(PROGRAM)

    def begin(style: str, address: str, kind: str, seed: int = 0) -> Life:
        lives.append(Life(nursery, style, address, kind, seed))
        return lives[-1]

    yield begin
    for life in lives:
        life.kill()
    nursery.close()
