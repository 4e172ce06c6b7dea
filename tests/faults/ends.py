"""The processes between which faults happen: a client, blocking or asyncio, and a server. Each does what it is told."""

import asyncio
import concurrent.futures
import ctypes
import faulthandler
import gc
import os
import random
import signal
import socket
import sys
import threading
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flow_service
import numpy as np
from busy_service import Busy, blocks
from flow import flow_rpc
from flow_service import Flow
from lab import TRANSIENT
from processes import Usage, eventually, open_files

import rrpc
from rrpc.cli.serving.heap import use_one_arena

from .line import Line

ARRAY_BYTES = {"small": 200_000, "large": 6_000_000}
ARRAYS = {name: np.arange(nbytes, dtype=np.uint8) for name, nbytes in ARRAY_BYTES.items()}
WINDOW: dict[str, Any] = {"stream_window_items": 16, "stream_window_bytes": 1 << 20}
WORKERS = 12
LOAD = ("echo", "echo", "echo", "varied", "cancel", "items", "send")
LOAD_CALLERS = 3
_libc = ctypes.CDLL(None, use_errno=True)
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
PROGRAM = (
    "import os, sys; sys.path.insert(0, os.path.dirname(sys.argv[1])); from faults import ends; ends.nurse()"
)


def nurse() -> None:
    """In the process that others are forked from: begins one for each line, and says its pid."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    use_one_arena()  # as rrpc-serve does: malloc_trim() leaves alone what is free at the end of another one
    for line in sys.stdin:
        kind, style, control, namespace = line.split()
        if (pid := os.fork()) == 0:
            if namespace != "-":
                _enter(namespace)
            faulthandler.register(signal.SIGUSR1)
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(control)
            (_Server() if kind == "server" else _Client(style)).serve(Line(connection))
            os._exit(0)
        print(pid, "-", flush=True)


def _enter(namespace: str) -> None:
    """This process's network is that one from now on."""
    with Path("/run/netns", namespace).open() as file:
        if _libc.setns(file.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"can't enter the namespace {namespace}")


class _End:
    """Carries out what the lane says until that is gone."""

    def __init__(self) -> None:
        self._files = 0

    def serve(self, line: Line) -> None:
        while (said := line.receive_or_none()) is not None:
            try:
                answer = getattr(self, said.pop("do"))(**said)
            except Exception:
                answer = {"broke": traceback.format_exc()}
            line.send(**answer)

    def held(self) -> dict[str, int]:
        """What the process holds that it may not keep."""
        gc.collect()
        stats = rrpc.stats()
        return {name: stats[name] for name in (*TRANSIENT, "connections_open")}

    def rest(self) -> dict[str, Any]:
        """Gives free memory back; says what the process still has."""
        said = self.settle(10.0)
        rrpc.trim()
        _libc.malloc_trim(0)
        return {**said, "own_bytes": Usage.of(os.getpid()).own_bytes}

    def settle(self, within: float, files: bool = True) -> dict[str, Any]:
        """Waits until nothing is held; says when that was, or what is left. ``files``: as few as after other cases."""
        left: dict[str, int] = {}

        def settled() -> bool:
            left.clear()
            left.update({name: count for name, count in self.held().items() if count})
            if files and self._files and (more := open_files() - self._files) > 0:
                left["files"] = more
            return not left

        try:
            eventually(settled, within)
        except AssertionError:
            return {"left": left}
        # The first case may open files that the process keeps; one is shared by all connections over shm.
        if files:
            self._files = self._files or open_files() + 1
        return {"left": {}, "at": time.monotonic()}


class _Server(_End):
    """Serves Busy and Flow, whose handlers are plain functions and coroutines."""

    def __init__(self) -> None:
        super().__init__()
        self._server: rrpc.Server | None = None

    def listen(self, address: str, options: dict[str, Any]) -> dict[str, Any]:
        if self._server is not None:
            self._server.stop()
        flow_service._go_on.clear()
        self._server = rrpc.Server(
            Busy(), Flow(), listen=address, workers=WORKERS, **WINDOW, **options
        ).start()
        return {"address": self._server.addresses[0]}

    def held(self) -> dict[str, int]:
        assert self._server is not None
        counts = Flow().counts()
        return {
            **super().held(),
            **self._server.stats(),
            "handlers": len(self._server.running()),
            "streams": counts["begun"] - counts["closed"],
        }

    def running(self) -> dict[str, Any]:
        assert self._server is not None
        return {"running": self._server.running()}

    def drain(self) -> dict[str, Any]:
        """Begins it; handlers have time to end."""
        assert self._server is not None
        threading.Thread(target=self._server.drain, args=(20.0,), daemon=True).start()
        return {}

    def go_on(self) -> dict[str, Any]:
        flow_service._go_on.set()
        return {}


async def _connected(address: str, options: dict[str, Any]) -> Any:
    return await flow_rpc.AsyncFlowClient(address, **options)


class _Client(_End):
    """Makes calls and notes how each wait ended, and when."""

    def __init__(self, style: str) -> None:
        super().__init__()
        self._style = style
        self._client: Any = None
        self._waits: list[dict[str, Any]] = []
        self._holding: threading.Thread | None = None
        self._loop = asyncio.new_event_loop()
        if style == "asyncio":
            threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def connect(self, address: str, timeout: float, options: dict[str, Any]) -> dict[str, Any]:
        options = {**WINDOW, **options, "connect_timeout": timeout}

        def connect() -> bool:
            if self._style == "blocking":
                self._client = flow_rpc.FlowClient(address, **options)
            else:
                self._client = self._run(_connected(address, options))
            return True

        return self._waited("connect", timeout, connect)

    def hold(self) -> dict[str, Any]:
        """Begins a call without a deadline, which ends with its connection."""
        future = self._call("Busy.hold", None)
        self._holding = threading.Thread(target=lambda: self._waited("held", None, lambda: self._end(future)))
        self._holding.start()
        return self._waited("echo", None, lambda: self._do("echo", None, 1))

    def op(self, what: str, timeout: float | None, times: int) -> dict[str, Any]:
        """Does it so many times, or until it fails."""
        for _ in range(times):
            said = self._waited(what, timeout, lambda: self._do(what, timeout, 7))
            if said["waits"][-1]["error"]:
                break
        return self._joined()

    def load(self, address: str, seconds: float, seed: int) -> dict[str, Any]:
        """Has some callers call for so long; gives the number of calls of each kind, and what was wrong."""
        [connected] = self.connect(address, 20.0, {})["waits"]
        if connected["error"]:
            return {
                "done": {},
                "wrong": [f"connect: {connected['error']}: {connected['message']}"],
                **self.close(),
            }
        end, done, wrong = time.monotonic() + seconds, Counter[str](), list[str]()

        def call_on(chance: random.Random) -> None:
            while time.monotonic() < end and not wrong:
                what = chance.choice(LOAD)
                try:
                    if not self._do(what, 30.0, chance.randrange(1 << 30)):
                        wrong.append(f"{what}: a wrong result")
                except Exception as error:
                    wrong.append(f"{what}: {type(error).__name__}: {error}")
                done[what] += 1

        callers = [
            threading.Thread(target=call_on, args=(random.Random(seed + i),)) for i in range(LOAD_CALLERS)
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        self.close()
        return {"done": done, "wrong": wrong}

    def again(self) -> dict[str, Any]:
        """A call after the fault, over a new connection if need be: it waits for that, as attempts have pauses."""
        own, self._client = self._client, self._client.with_options(wait_for_ready=True)
        try:
            return self._waited("again", 10.0, lambda: self._do("echo", 10.0, 2))
        finally:
            self._client = own

    def close(self) -> dict[str, Any]:
        if self._client is not None:
            self._run(self._client.close()) if self._style == "asyncio" else self._client.close()
        self._client = None
        waits = self._joined()["waits"]
        self._waits = []
        return {"waits": waits}

    def _joined(self) -> dict[str, Any]:
        if self._client is None and self._holding is not None:
            self._holding.join()
            self._holding = None
        return {"waits": self._waits}

    def _waited(self, name: str, timeout: float | None, wait: Callable[[], bool]) -> dict[str, Any]:
        began, error, message, right = time.monotonic(), "", "", False
        try:
            right = wait()
        except Exception as raised:
            error, message = type(raised).__name__, str(raised)
        note = {"name": name, "timeout": timeout, "began": began, "ended": time.monotonic()}
        self._waits.append({**note, "error": error, "message": message, "right": right})
        return {"waits": self._waits}

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _call(self, method: str, timeout: float | None, *args: Any) -> Any:
        """A future of this style."""
        if self._style == "blocking":
            return self._client.start(method, *args, timeout=timeout)

        async def begin() -> Any:
            return self._client.start(f"{method}_later", *args, timeout=timeout)

        return self._run(begin())

    def _end(self, future: Any) -> Any:
        if self._style == "blocking":
            return future.result()

        async def end() -> Any:
            return await future

        return self._run(end())

    def _do(self, what: str, timeout: float | None, value: int) -> bool:
        """Makes one call; returns whether its result is right."""
        act = getattr(self, f"_{what}_{self._style}", None) or getattr(self, f"_{what}")
        return bool(act(timeout, value))

    def _echo(self, timeout: float | None, value: int) -> bool:
        return bool(self._end(self._call("Busy.echo", timeout, value)) == value)

    def _array(self, timeout: float | None, value: int, size: str = "small") -> bool:
        result = self._end(self._call("Busy.echo", timeout, ARRAYS[size]))
        return bool((result == ARRAYS[size]).all())

    def _varied(self, timeout: float | None, value: int) -> bool:
        """An array of any size and bytes."""
        chance = np.random.default_rng(value)
        array = chance.integers(0, 256, chance.integers(1, 2_000_000), np.uint8)
        return zlib.crc32(self._end(self._call("Busy.echo", timeout, array))) == zlib.crc32(array.data)

    def _large(self, timeout: float | None, value: int) -> bool:
        return self._array(timeout, value, "large")

    def _cancel(self, timeout: float | None, value: int) -> bool:
        future = self._call("Busy.hold", timeout)
        self._echo(timeout, value)  # it is at the server by now
        if self._style == "blocking":
            future.cancel()
        else:
            self._loop.call_soon_threadsafe(future.cancel)
        try:
            self._end(future)
        except (rrpc.Cancelled, concurrent.futures.CancelledError):
            return True
        return False

    def _items_blocking(self, timeout: float | None, value: int) -> bool:
        return list(self._client.count(100, timeout=timeout)) == list(range(100))

    def _items_asyncio(self, timeout: float | None, value: int) -> bool:
        async def take() -> list[int]:
            return [item async for item in self._client.later(100, timeout=timeout)]

        return bool(self._run(take()) == list(range(100)))

    def _send_blocking(self, timeout: float | None, value: int) -> bool:
        return bool(self._client.weigh(blocks(40, 60_000), timeout=timeout) == 40 * 60_000)

    def _send_asyncio(self, timeout: float | None, value: int) -> bool:
        async def send() -> Any:
            return await self._client.weigh(blocks(40, 60_000), timeout=timeout)

        return bool(self._run(send()) == 40 * 60_000)

    def _stay_blocking(self, timeout: float | None, value: int) -> bool:
        """Waits in a handler until the server is told to go on."""
        return self._client.waits_to_go_on(timeout=timeout) is None

    def _stay_asyncio(self, timeout: float | None, value: int) -> bool:
        async def stay() -> Any:
            return await self._client.waits_to_go_on(timeout=timeout)

        return self._run(stay()) is None
