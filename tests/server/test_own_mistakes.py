"""What is a server's own mistake stands in its log, in each style of handler."""

import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from processes import eventually

import rrpc


@rrpc.service
class Mistaken:
    @rrpc.method
    def plain(self) -> int:
        return "x"  # type: ignore[return-value]

    @rrpc.method
    async def later(self) -> int:
        return "x"  # type: ignore[return-value]

    @rrpc.method
    def items(self) -> Iterator[int]:
        yield "x"  # type: ignore[misc]

    @rrpc.method
    async def items_later(self) -> AsyncIterator[int]:
        yield "x"  # type: ignore[misc]

    @rrpc.method
    def own_words(self) -> int:
        raise rrpc.Internal("the index is damaged")

    @rrpc.method
    def usual(self) -> int:
        raise rrpc.NotFound("no such row")


LINES = {
    "plain": "Mistaken.plain(): the result isn't as declared: expected int, got str",
    "later": "Mistaken.later(): the result isn't as declared: expected int, got str",
    "items": "Mistaken.items(): an item of the result isn't as declared: expected int, got str",
    "items_later": "Mistaken.items_later(): an item of the result isn't as declared: expected int, got str",
    "own_words": "the index is damaged",
}


def make(client: rrpc.Client, method: str) -> None:
    if method.startswith("items"):
        list(rrpc.open_stream(client, f"Mistaken.{method}", timeout=20.0))
    else:
        client.call(f"Mistaken.{method}", timeout=20.0)


@pytest.mark.parametrize("method", LINES)
def test_internal_errors_are_logged(method: str, caplog: pytest.LogCaptureFixture) -> None:
    with (
        rrpc.serve(Mistaken(), listen="tcp://127.0.0.1:0") as server,
        rrpc.connect(server.addresses[0]) as client,
    ):
        with pytest.raises(rrpc.NotFound):
            client.call("Mistaken.usual", timeout=20.0)
        with pytest.raises(rrpc.Internal):
            make(client, method)
        eventually(lambda: caplog.messages)
    assert caplog.record_tuples == [
        ("rrpc.server", logging.ERROR, f"Mistaken.{method}() fails with INTERNAL: {LINES[method]}")
    ]


@pytest.mark.parametrize("method", LINES)
def test_interceptors_and_observers_see_the_code_that_the_caller_has(method: str) -> None:
    seen: list[str] = []
    observed: list[int] = []

    class Sees(rrpc.ServerInterceptor):
        def unary(self, call: Any) -> Any:
            try:
                return (yield call)
            except rrpc.RpcError as error:
                seen.append(error.code.name)
                raise

        def stream(self, call: Any) -> Any:
            call.on_end(lambda error: seen.append(getattr(error, "code", rrpc.StatusCode.OK).name))
            return (yield call)

    server = rrpc.Server(
        Mistaken(),
        listen="tcp://127.0.0.1:0",
        interceptors=[Sees()],
        observer=lambda call: observed.append(call.code),
    )
    with server, rrpc.connect(server.addresses[0]) as client:
        with pytest.raises(rrpc.Internal):
            make(client, method)
        eventually(lambda: seen and observed)
    assert (seen, observed) == (["INTERNAL"], [13])
