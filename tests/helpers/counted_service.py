"""A service whose servers note each run of a handler in a file, and its client; for tests of channels and retries."""

import asyncio
import functools
import os
import time
from pathlib import Path
from typing import Any

import rrpc
from rrpc import MetadataLike

_WHOLE = "ran"


@rrpc.service
class Counted:
    """``folder`` has the file of runs, and files that tell the server called ``name`` what to do."""

    def __init__(self, name: str, folder: str) -> None:
        self.name = name
        self._folder = Path(folder)
        self._runs = os.open(self._folder / "runs", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def _run(self, key: str) -> str:
        os.write(self._runs, f"\n{key} {self.name} {_WHOLE}\n".encode())
        if (self._folder / f"fail-{self.name}").exists():
            raise rrpc.Unavailable(f"{self.name} was told to fail")
        slow = self._folder / f"slow-{self.name}"
        while slow.exists() and not rrpc.context().cancelled:
            time.sleep(0.002)
        return self.name

    @rrpc.method
    def once(self, key: str) -> str:
        """Does something that mustn't be done twice."""
        return self._run(key)

    @rrpc.method(idempotent=True)
    def often(self, key: str) -> str:
        """May be called as often as one likes."""
        return self._run(key)

    @rrpc.method(idempotent=True)
    def moody(self, key: str, failures: int, code: int) -> str:
        """Fails so many times for a key."""
        ran = self._run(key)
        if runs_of(self._folder).count(key) > failures:
            return ran
        rrpc.context().set_metadata({"tried": key})
        raise (rrpc.Unavailable if code == 14 else rrpc.Aborted)("in a mood")


def runs_of(folder: Path) -> list[str]:
    """The key of each run, in order.

    Who is killed while writing across the end of a page leaves half a line, which nobody was answered for.
    """
    runs = folder / "runs"
    lines = runs.read_text().splitlines() if runs.exists() else []
    return [line.split()[0] for line in lines if line.endswith(f" {_WHOLE}")]


class _Once(rrpc.UnaryMethod[str]):
    rpc_name = "Counted.once"

    def __call__(
        self, key: str, *, timeout: float | None = None, metadata: MetadataLike | None = None
    ) -> str:
        return self._call((key,), timeout, metadata)

    def start(
        self, key: str, *, timeout: float | None = None, metadata: MetadataLike | None = None
    ) -> rrpc.Future[str]:
        return self._start((key,), timeout, metadata)


class _Often(rrpc.UnaryMethod[str]):
    rpc_name = "Counted.often"
    rpc_idempotent = True

    def __call__(
        self, key: str, *, timeout: float | None = None, metadata: MetadataLike | None = None
    ) -> str:
        return self._call((key,), timeout, metadata)

    def start(
        self, key: str, *, timeout: float | None = None, metadata: MetadataLike | None = None
    ) -> rrpc.Future[str]:
        return self._start((key,), timeout, metadata)


class _Moody(rrpc.UnaryMethod[str]):
    rpc_name = "Counted.moody"
    rpc_idempotent = True

    def __call__(self, key: str, failures: int, code: int, *, timeout: float | None = None) -> str:
        return self._call((key, failures, code), timeout)

    def start(self, key: str, failures: int, code: int, *, timeout: float | None = None) -> rrpc.Future[str]:
        return self._start((key, failures, code), timeout)


class CountedClient(rrpc.Client):
    once = rrpc.stub(_Once)
    often = rrpc.stub(_Often)
    moody = rrpc.stub(_Moody)


@functools.cache
def twin(kind: Any) -> type[Any]:
    """The method of the asyncio client beside a blocking one's."""
    options = {name: getattr(kind, name) for name in ("rpc_name", "rpc_idempotent", "__call__", "start")}
    return type(f"Async{kind.__name__}", (rrpc.aio.UnaryMethod,), options)


class AsyncCountedClient(rrpc.aio.Client):
    once: Any = rrpc.stub(twin(_Once))
    often: Any = rrpc.stub(twin(_Often))
    moody: Any = rrpc.stub(twin(_Moody))


def call_in_loop(method: Any, *args: Any, **options: Any) -> Any:
    """A call of a blocking client's method as an asyncio client's, on the same channel with the same options."""

    kind: Any = type(method)

    async def call() -> Any:
        return await twin(kind)(method)(*args, **options)

    return asyncio.run(call())
