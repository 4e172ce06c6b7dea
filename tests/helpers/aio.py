"""One server of aio_service for the tests of asyncio, and both loops to call it in."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from lab import TRANSPORTS, LabServer, address_to_listen_on
from processes import ServeFactory, patience

import rrpc

T = TypeVar("T")
SERVICE = (Path(__file__).parent / "aio_service.py").read_text()
LOOPS = ("asyncio", "uvloop")

Run = Callable[[Coroutine[Any, Any, T]], T]


@pytest.fixture(params=LOOPS)
def in_loop(request: pytest.FixtureRequest) -> Run[Any]:
    """``asyncio.run``, and that of uvloop; with a limit that ends what hangs."""
    # Skipped here, as a test may run its loops in threads.
    runner: Run[Any] = pytest.importorskip(request.param).run

    def limited(main: Coroutine[Any, Any, T]) -> T:
        found: T = runner(asyncio.wait_for(main, patience(60)))
        return found

    return limited


@pytest.fixture(scope="session")
def aio_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    """Shared by all tests that leave it as it was."""
    folder = tmp_path_factory.mktemp("aio")
    factory = ServeFactory(folder, address_to_listen_on)
    yield LabServer(factory(SERVICE, "Mixed", listen=TRANSPORTS, module="aio_service"))
    factory.close()


@pytest.fixture
def aio_address(aio_server: LabServer, transport: str) -> str:
    """Of the shared server, once for each transport."""
    return aio_server.address(transport)


async def until(condition: Callable[[], Coroutine[Any, Any, bool]], seconds: float = 20.0) -> None:
    """Waits until the condition holds."""

    async def wait() -> None:
        while not await condition():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(wait(), patience(seconds))


async def counts_are(client: rrpc.aio.Client, waiting: int) -> bool:
    found: list[int] = await client.call("Mixed.counts")
    return found[0] == waiting
