"""Interceptors around the calls of a client, in each style of calling."""

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest
from processes import eventually
from styles import Shop, calling

import rrpc
from rrpc.interceptors import Sleep
from rrpc.std import HealthClient, HealthStatus

Steps = Generator[Any, Any, Any]


class Around(rrpc.ClientInterceptor):
    def __init__(self, unary: Callable[[Any], Steps]) -> None:
        self._unary = unary

    def unary(self, call: Any) -> Steps:
        return (yield from self._unary(call))


def test_what_an_interceptor_sees_and_changes(shop_address: str, style: str) -> None:
    facts: dict[str, Any] = {}

    def look(call: Any) -> Steps:
        facts.update(
            method=call.method,
            arguments=dict(call.arguments),
            idempotent=call.idempotent,
            left=call.time_left(),
            before=call.attempt,
            metadata=dict(call.metadata),
        )
        call.metadata["trace"] = "7"
        result = yield call
        facts.update(after=call.attempt, reply=dict(call.reply_metadata), peer=call.peer)
        return result + 1000

    with calling(style, shop_address, interceptors=[Around(look)], metadata={"always": "there"}) as call:
        assert call("Shop.price", "apple", count=2, timeout=20.0) == 1010
    assert 0 < facts.pop("left") <= 20
    assert facts.pop("peer")
    assert facts == {
        "method": "Shop.price",
        "arguments": {0: "apple", "count": 2},
        "idempotent": False,
        "before": 0,
        "metadata": {"always": "there"},
        "after": 1,
        "reply": {"shop": "corner", "raw": b"\0"},
    }


def test_metadata_goes_with_the_call(shop_address: str, style: str) -> None:
    def add(call: Any) -> Steps:
        call.metadata["added"] = "yes"
        return (yield call)

    with calling(style, shop_address, interceptors=[Around(add)]) as call:
        assert call("Shop.metadata", metadata={"mine": "too"}) == {"mine": "too", "added": "yes"}


def test_the_first_is_the_outermost(shop_address: str, style: str) -> None:
    order: list[str] = []

    def named(name: str) -> Around:
        def unary(call: Any) -> Steps:
            order.append(f"{name} before")
            result = yield call
            order.append(f"{name} after")
            return result

        return Around(unary)

    with calling(style, shop_address, interceptors=[named("a"), named("b")]) as call:
        call("Shop.price", "apple")
    assert order == ["a before", "b before", "b after", "a after"]


def test_errors(shop_address: str, style: str) -> None:
    shops: list[Any] = []

    def replace(call: Any) -> Steps:
        try:
            return (yield call)
        except rrpc.NotFound as error:
            shops.append(error.metadata["shop"])
            if call.metadata.get("quiet"):
                return 0
            raise rrpc.FailedPrecondition("replaced") from error

    with calling(style, shop_address, interceptors=[Around(replace)]) as call:
        assert call("Shop.price", "none", metadata={"quiet": "yes"}) == 0
        with pytest.raises(rrpc.FailedPrecondition, match="replaced"):
            call("Shop.price", "none")
        assert call("Shop.price", "apple") == 5
    assert shops == ["corner", "corner"]


def test_an_answer_in_the_calls_place(shop_address: str, style: str, shop: Shop) -> None:
    def answer(call: Any) -> Steps:
        if call.arguments[0] == "apple":
            return 7
        return (yield call)

    with calling(style, shop_address, interceptors=[Around(answer)]) as call:
        assert call("Shop.price", "apple") == 7
        assert call("Shop.price", "plum") == 4
    assert shop.handled == ["plum"]


def test_the_call_again(shop_address: str, style: str) -> None:
    attempts: list[int] = []

    def retry(call: Any) -> Steps:
        while True:
            try:
                return (yield call)
            except rrpc.Aborted:  # noqa: PERF203
                attempts.append(call.attempt)
                yield Sleep(0.001)

    with calling(style, shop_address, interceptors=[Around(retry)]) as call:
        assert call("Shop.flaky", 3) == 4
    assert attempts == [1, 2, 3]


def test_sleep_ends_with_the_deadline(shop_address: str, style: str, shop: Shop) -> None:
    def sleepy(call: Any) -> Steps:
        yield Sleep(3600)
        return (yield call)

    with calling(style, shop_address, interceptors=[Around(sleepy)]) as call:
        began = time.monotonic()
        with pytest.raises(rrpc.DeadlineExceeded) as raised:
            call("Shop.price", "apple", timeout=0.05)
        assert raised.value.not_executed
        assert time.monotonic() - began < 60
    assert shop.handled == []


def test_a_sleep_after_an_attempt(style: str, shop_address: str, shop: Shop) -> None:
    """A handler has seen the call, whatever ends it then."""

    def again(call: Any) -> Steps:
        try:
            return (yield call)
        except rrpc.Aborted:
            yield Sleep(3600)
            return None

    with (
        calling(style, shop_address, interceptors=[Around(again)]) as call,
        pytest.raises(rrpc.DeadlineExceeded) as raised,
    ):
        call("Shop.flaky", 3, timeout=1.0)
    assert not raised.value.not_executed
    assert shop.handled == ["flaky"]


def test_arrays_pass_through(shop_address: str, style: str) -> None:
    def around(call: Any) -> Steps:
        return (yield call)

    values = np.arange(100_000.0)
    with calling(style, shop_address, interceptors=[Around(around), Around(around)]) as call:
        assert (call("Shop.double", values) == values * 2).all()
        out = np.empty_like(values)
        assert call("Shop.double", values, out=out) is out
        assert (out == values * 2).all()


def test_faulty_ones(shop_address: str, style: str) -> None:
    def three(call: Any) -> Steps:
        yield 3

    def broken(call: Any) -> Steps:
        yield call
        raise KeyError("mine")

    class Coroutine(rrpc.ClientInterceptor):
        async def unary(self, call: Any) -> Any:  # type: ignore[override]
            return None

    for interceptor, error, text in (
        (
            Around(three),
            TypeError,
            r"Around\.unary\(\) in line \d+ yielded 3: an interceptor yields its call",
        ),
        (Around(broken), KeyError, "mine"),
        (Coroutine(), TypeError, r"Coroutine\.unary\(\) is `async def`: leave out"),
    ):
        with (
            calling(style, shop_address, interceptors=[interceptor]) as call,
            pytest.raises(error, match=text),
        ):
            call("Shop.price", "apple")


def test_awaitables(shop_address: str, style: str) -> None:
    async def token() -> str:
        await asyncio.sleep(0)
        return "t"

    def awaits(call: Any) -> Steps:
        call.metadata["token"] = yield token()
        return (yield call)

    with calling(style, shop_address, interceptors=[Around(awaits)]) as call:
        if style == "asyncio":
            assert call("Shop.metadata") == {"token": "t"}
        else:
            with pytest.raises(TypeError, match=r"yielded an awaitable \(coroutine\), but nothing can be"):
                call("Shop.metadata")


@pytest.mark.parametrize("style", ["blocking", "futures"])
def test_a_generated_clients_calls(shop_address: str, style: str) -> None:
    """Arguments have names, results are still what the interface says."""
    seen: list[tuple[str, dict[str, Any], bool]] = []

    def answer(call: Any) -> Steps:
        seen.append((call.method, dict(call.arguments), call.idempotent))
        result = yield call
        return HealthStatus.NOT_SERVING if call.arguments["service"] else str(result)

    with HealthClient(shop_address, timeout=30.0, interceptors=[Around(answer)]) as health:
        check = health.check if style == "blocking" else lambda *args: health.check.start(*args).result(60.0)
        assert check("Shop") is HealthStatus.NOT_SERVING
        with pytest.raises(
            rrpc.Internal, match=r"Health\.check\(\): the result isn't as declared: expected HealthStatus"
        ):
            check("")
    assert seen[0] == ("rrpc.Health.check", {"service": "Shop"}, True)


def test_stamps(shop_address: str, style: str) -> None:
    found: dict[str, int] = {}

    def trace(call: Any) -> Steps:
        call.traced = True
        assert call.stamps() == {}
        result = yield call
        found.update(call.stamps())
        return result

    with calling(style, shop_address, interceptors=[Around(trace)]) as call:
        call("Shop.double", np.zeros(100_000))
    assert list(found) == [
        "begun",
        "arguments exposed",
        "request sent",
        "reply received",
        "results fetched",
        "results taken",
    ]
    assert list(found.values()) == sorted(found.values())
    assert found["results taken"] <= time.monotonic_ns()


def test_errors_of_refused_interceptors_pass_the_outer_ones(shop_address: str, style: str) -> None:
    async def nothing() -> None: ...

    def outer(call: Any) -> Steps:
        try:
            return (yield call)
        except TypeError:
            return -1

    def inner(call: Any) -> Steps:
        yield nothing()
        yield 3

    with calling(style, shop_address, interceptors=[Around(outer), Around(inner)]) as call:
        assert call("Shop.price", "apple") == -1


def test_many_at_a_time_in_futures(shop_address: str) -> None:
    """No thread for each: those that sleep wait for a timer, the others for the connection."""

    def sleeps(call: Any) -> Steps:
        yield Sleep(0.01)
        result = yield call
        yield Sleep(0.01)
        return result

    with rrpc.connect(shop_address, timeout=60.0, interceptors=[Around(sleeps)]) as client:
        before = threading.active_count()
        futures = [client.start("Shop.price", "x", count=i) for i in range(300)]
        assert threading.active_count() <= before + 1
        assert [future.result(60.0) for future in futures] == list(range(300))


def test_a_future_can_be_cancelled_whatever_it_does(shop_address: str, shop: Shop) -> None:
    ended: list[type[BaseException]] = []

    def watch(call: Any) -> Steps:
        try:
            if call.arguments:
                yield Sleep(3600)
            return (yield call)
        except BaseException as error:
            ended.append(type(error))
            raise

    with rrpc.connect(shop_address, interceptors=[Around(watch)]) as client:
        for future in (client.start("Shop.wait"), client.start("Shop.price", "apple")):
            assert not future.done()
            assert future.cancel()
            with pytest.raises(rrpc.Cancelled):
                future.result(60.0)
            assert future.cancelled()
            assert future.done()
        eventually(lambda: ended == [rrpc.Cancelled, rrpc.Cancelled])
    assert shop.handled == []


def test_a_cancelled_task_reaches_the_interceptors(shop_address: str, shop: Shop) -> None:
    ended: list[type[BaseException]] = []
    begun = asyncio.Event()

    def watch(call: Any) -> Steps:
        try:
            begun.set()
            if call.arguments:
                yield Sleep(3600)
            return (yield call)
        except BaseException as error:
            ended.append(type(error))
            raise

    async def main() -> None:
        async with rrpc.aio.connect(shop_address, interceptors=[Around(watch)]) as client:
            for arguments in ([], ["apple"]):
                begun.clear()
                task = asyncio.ensure_future(
                    client.call("Shop.price" if arguments else "Shop.wait", *arguments)
                )
                await begun.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

    asyncio.run(main())
    assert ended == [asyncio.CancelledError, asyncio.CancelledError]
    assert shop.handled == []


def test_a_future_calls_back(shop_address: str) -> None:
    def around(call: Any) -> Steps:
        return (yield call) + 1

    seen: list[int] = []
    with rrpc.connect(shop_address, interceptors=[Around(around)]) as client:
        client.start("Shop.price", "apple").add_done_callback(lambda future: seen.append(future.result()))
        eventually(lambda: seen == [6])


def test_with_options(shop_address: str) -> None:
    def adding(number: int) -> Around:
        def unary(call: Any) -> Steps:
            return (yield call) + number

        return Around(unary)

    with rrpc.connect(shop_address, timeout=30.0, interceptors=[adding(10)]) as client:
        other = client.with_options(interceptors=[adding(100), adding(1000)])
        plain = client.with_options(interceptors=[])
        assert [one.call("Shop.price", "x") for one in (client, other, plain)] == [11, 1101, 1]


@pytest.mark.parametrize("given", [[Around], [rrpc.ServerInterceptor()], "x", 3])
def test_what_is_no_interceptor_of_a_client(shop_address: str, given: Any) -> None:
    with pytest.raises(TypeError, match="interceptor"):
        rrpc.connect(shop_address, interceptors=given)
    with rrpc.connect(shop_address) as client, pytest.raises(TypeError, match="interceptor"):
        client.with_options(interceptors=given)
