"""One client, three styles of calling: blocking, futures, asyncio; and a service to call."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import rrpc

STYLES = ("blocking", "futures", "asyncio")


@contextmanager
def calling(style: str, address: str, **options: Any) -> Iterator[Callable[..., Any]]:
    """Gives what calls ``"Service.method"`` and waits for the result, in that style."""
    options.setdefault("timeout", 30.0)
    if style == "asyncio":
        yield from _asyncio(address, options)
        return
    with rrpc.connect(address, **options) as client:
        if style == "blocking":
            yield client.call
        else:
            yield lambda *args, **kwargs: client.start(*args, **kwargs).result(60.0)


@contextmanager
def serving(
    address: str, *interceptors: Any, kind: "type[Shop] | None" = None, **options: Any
) -> Iterator[tuple["Shop", rrpc.Client]]:
    """A server of a new shop with interceptors, and a plain client of it."""
    service = (kind or Shop)()
    server = rrpc.serve(service, listen=address, interceptors=interceptors, workers=2, **options)
    with server, rrpc.connect(server.addresses[0], timeout=30.0) as client:
        yield service, client


def _asyncio(address: str, options: dict[str, Any]) -> Iterator[Callable[..., Any]]:
    loop = asyncio.new_event_loop()

    async def connect() -> Any:
        return await rrpc.aio.connect(address, **options)

    client = loop.run_until_complete(connect())

    async def call(*args: Any, **kwargs: Any) -> Any:
        return await client.call(*args, **kwargs)

    try:
        yield lambda *args, **kwargs: loop.run_until_complete(call(*args, **kwargs))
    finally:
        loop.run_until_complete(client.close())
        loop.close()


@rrpc.service
class Shop:
    def __init__(self) -> None:
        self.handled: list[str] = []
        self.gate = threading.Event()

    @rrpc.method
    def price(self, article: str, *, count: int = 1) -> int:
        self.handled.append(article)
        rrpc.context().set_metadata({"shop": "corner", "raw": b"\0"})
        if article == "none":
            raise rrpc.NotFound("no such article")
        if article == "broken":
            raise ValueError("broken")
        return len(article) * count

    @rrpc.method(idempotent=True)
    def flaky(self, failures: int) -> int:
        """Fails so many times before it gives how often it was called."""
        self.handled.append("flaky")
        if self.handled.count("flaky") <= failures:
            raise rrpc.Aborted("again, please")
        return self.handled.count("flaky")

    @rrpc.method
    def double(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return values * 2

    @rrpc.method
    def metadata(self) -> dict[str, str]:
        return {name: str(value) for name, value in rrpc.context().metadata.items()}

    @rrpc.method
    def wait(self) -> None:
        self.gate.wait(60)


class AsyncShop(Shop):
    """The same with async handlers."""

    async def price(self, article: str, *, count: int = 1) -> int:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().price(article, count=count)

    async def double(self, values: NDArray[np.float64]) -> NDArray[np.float64]:  # type: ignore[override]
        return super().double(values)


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def shop_address(shop: Shop, address: str) -> Iterator[str]:
    """The address of a server of ``shop``, once for each transport."""
    with rrpc.serve(shop, listen=address, workers=4) as server:
        yield server.addresses[0]
        shop.gate.set()


@pytest.fixture(params=STYLES)
def style(request: pytest.FixtureRequest) -> str:
    return str(request.param)
