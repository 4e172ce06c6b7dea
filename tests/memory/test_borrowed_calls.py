"""Borrowed arrays between processes: the same values and the same rights over each transport."""

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from lab import TRANSPORTS, address_to_listen_on
from loans_service import AsyncLoans, Loans, ordinary, pooled
from processes import Served, ServeFactory
from styles import STYLES, calling
from two_versions import generate

import rrpc
from rrpc.interceptors import ClientInterceptor

CLIENTS = {kind: generate(kind) for kind in (Loans, AsyncLoans)}
WEIGHTS = ordinary()
SUM = float(WEIGHTS.sum(dtype=np.float64))


@pytest.fixture(scope="module")
def loans_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    factory = ServeFactory(tmp_path_factory.mktemp("loans"), address_to_listen_on)
    text = "from loans_service import AsyncLoans, Loans\n"
    yield factory(text, "Loans", "AsyncLoans", listen=TRANSPORTS, module="loans")
    factory.close()


@pytest.fixture
def address(loans_server: Served, transport: str) -> str:
    return loans_server.addresses[TRANSPORTS.index(transport)]


@pytest.fixture
def loans(address: str) -> Iterator[Any]:
    with CLIENTS[Loans].LoansClient(address, timeout=30.0) as client:
        yield client


def same(array: Any, expected: Any, writable: bool = False) -> None:
    assert type(array) is np.ndarray
    assert array.flags.writeable is writable
    np.testing.assert_array_equal(array, expected)


def test_results(loans: Any) -> None:
    same(loans.weights(), WEIGHTS)
    same(loans.ordinary(), WEIGHTS)
    same(loans.small(), WEIGHTS[:2])
    layers = loans.layers()
    same(layers["first"], WEIGHTS)
    assert layers["second"] is None
    same(layers["third"], WEIGHTS[:2])
    same(loans.plain(), WEIGHTS, writable=True)


def test_results_outlive_their_call(loans: Any) -> None:
    held = [loans.weights() for _ in range(3)]
    same(loans.weights(), WEIGHTS)
    for array in held:
        same(array, WEIGHTS)


def test_arguments(loans: Any) -> None:
    for array in (WEIGHTS, np.array(WEIGHTS), WEIGHTS[:2], rrpc.snapshot(WEIGHTS)):
        assert loans.sum(array) == (float(array.sum(dtype=np.float64)), False)
    strided = pooled()[:, ::-1]
    assert loans.sum(strided) == (SUM, False)


def test_arguments_that_the_handler_keeps(address: str) -> None:
    with CLIENTS[Loans].LoansClient(address, timeout=30.0) as client:
        count = client.keep(pooled(5))
        assert client.keep(np.array(WEIGHTS)) == count + 1
        sums = client.kept_sums()[-2:]
        assert sums == [SUM + 5 * WEIGHTS.size, SUM]


def test_arguments_and_results_of_both_kinds(loans: Any) -> None:
    lent, own, writable = loans.mixed([WEIGHTS, WEIGHTS[:2]], WEIGHTS, also=pooled(1))
    same(lent, WEIGHTS)
    same(own, WEIGHTS, writable=True)
    assert writable == [False, False, True, False]


def test_who_borrows_nothing_may_write(loans: Any) -> None:
    array = pooled()
    total, writable = loans.change(array)
    assert writable
    assert total == SUM + array.size
    np.testing.assert_array_equal(array, WEIGHTS)


def test_out_is_the_callers_own(loans: Any) -> None:
    out = np.zeros_like(WEIGHTS)
    assert loans.weights(out=out) is out
    same(out, WEIGHTS, writable=True)


def test_streams_have_items_of_their_own(loans: Any) -> None:
    halves = list(loans.halves(WEIGHTS))
    for half, expected in zip(halves, np.split(WEIGHTS, 2), strict=True):
        same(half, expected, writable=True)
    same(loans.joined(iter(halves)), WEIGHTS)


def test_dimensions(loans: Any) -> None:
    with pytest.raises(rrpc.InvalidArgument, match="dimension 1 is 3, not 64"):
        loans.sum(np.zeros((2, 3), np.float32))


class Through(ClientInterceptor):
    """Takes calls off the fast path."""

    def unary(self, call: Any) -> Any:
        return (yield call)


class Another(ClientInterceptor):
    def unary(self, call: Any) -> Any:
        yield call
        return np.ones((2, 64), np.float32)


@pytest.mark.parametrize(
    "options",
    [
        {"interceptors": [Through()]},
        {"retry": rrpc.RetryPolicy()},
        {"hedging": rrpc.HedgingPolicy(delay=30.0)},
    ],
    ids=["interceptors", "retry", "hedging"],
)
def test_calls_that_are_not_plain(loans: Any, options: dict[str, Any]) -> None:
    client = loans.with_options(**options)
    same(client.weights(), WEIGHTS)
    same(client.weights.start().result(30.0), WEIGHTS)
    assert client.sum(WEIGHTS) == (SUM, False)
    same(client.call("Loans.weights", borrow=True), WEIGHTS)
    same(client.call("Loans.weights"), WEIGHTS, writable=True)


def test_what_an_interceptor_puts_in_the_place_of_a_result(loans: Any) -> None:
    same(loans.with_options(interceptors=[Another()]).weights(), np.ones((2, 64)))


def test_futures(loans: Any) -> None:
    futures = [loans.weights.start() for _ in range(4)]
    for future in futures:
        same(future.result(30.0), WEIGHTS)


def test_asyncio(address: str) -> None:
    async def main() -> None:
        async with CLIENTS[Loans].AsyncLoansClient(address, timeout=30.0) as client:
            for array in await asyncio.gather(*(client.weights() for _ in range(4))):
                same(array, WEIGHTS)
            assert await client.sum(WEIGHTS) == (SUM, False)

    asyncio.run(main())


def test_async_handlers_and_batches(address: str) -> None:
    with CLIENTS[AsyncLoans].AsyncLoansClient(address, timeout=30.0) as client:
        lent, own, writable = client.echo(WEIGHTS, WEIGHTS)
        same(lent, WEIGHTS)
        same(own, WEIGHTS, writable=True)
        assert writable == [False, True]
        for future in [client.double.start(WEIGHTS) for _ in range(4)]:
            same(future.result(30.0), WEIGHTS * 2)


def test_a_lent_result_is_copied_for_a_caller_that_borrows_nothing(loans_server: Served) -> None:
    """Over shm, where the server does lend it."""
    with rrpc.connect(loans_server.addresses[TRANSPORTS.index("shm")], timeout=30.0) as client:
        for borrow in (True, False):
            before = rrpc.stats()
            array = client.call("Loans.weights", borrow=borrow)
            after = rrpc.stats()
            same(array, WEIGHTS, writable=not borrow)
            assert after["ranges_borrowed"] == before["ranges_borrowed"] + 1
            assert after["unpacks"] == before["unpacks"] + (not borrow)


@pytest.mark.parametrize("style", STYLES)
def test_calls_by_name(style: str, address: str) -> None:
    with calling(style, address) as call:
        same(call("Loans.weights", borrow=True), WEIGHTS)
        same(call("Loans.weights"), WEIGHTS, writable=True)
        same(call("Loans.plain", borrow=True), WEIGHTS)
        assert call("Loans.sum", WEIGHTS, borrow=True) == (SUM, False)
        lent, own, writable = call("Loans.mixed", [WEIGHTS], own=WEIGHTS, borrow=True)
        same(lent, WEIGHTS)
        same(own, WEIGHTS)
        assert writable == [False, True]
        out = np.zeros_like(WEIGHTS)
        assert call("Loans.weights", out=out, borrow=True) is out
        same(out, WEIGHTS, writable=True)


def test_calls_by_name_lend_their_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    from rrpc._client.client import Untyped
    from rrpc.codec import Lent

    for borrow in (False, True):
        _, _, buffers = Untyped("Loans.mixed", ([WEIGHTS],), {"own": WEIGHTS}, None, borrow).encode(None)  # type: ignore[arg-type]
        assert [type(buffer) is Lent for buffer in buffers] == [borrow, borrow]
