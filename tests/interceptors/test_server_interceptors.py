"""Interceptors around the handlers of a server."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Generator
from functools import partial
from typing import Any

import numpy as np
import pytest
import styles
from processes import ServeFactory, eventually, run_serve
from styles import AsyncShop, Shop

import rrpc
from rrpc.interceptors import ServerLogging, ServerToken, Sleep

Steps = Generator[Any, Any, Any]
Serving = Callable[..., Any]


@pytest.fixture(params=[Shop, AsyncShop])
def serving(request: pytest.FixtureRequest) -> Serving:
    """``styles.serving`` with plain handlers, and with async ones."""
    served: Serving = partial(styles.serving, kind=request.param)
    return served


class Around(rrpc.ServerInterceptor):
    """Keeps the calls it has seen; ``ask`` may be replaced."""

    def __init__(self, unary: Callable[[Any], Steps] | None = None) -> None:
        self.seen: list[Any] = []
        self._unary = unary

    def unary(self, call: Any) -> Steps:
        self.seen.append(call.method)
        if self._unary is None:
            return (yield call)
        return (yield from self._unary(call))


def test_what_an_interceptor_sees_and_changes(serving: Serving, address: str) -> None:
    facts: dict[str, Any] = {}

    def look(call: Any) -> Steps:
        facts.update(
            method=call.method,
            arguments=dict(call.arguments),
            idempotent=call.idempotent,
            peer=call.peer,
            left=call.time_left(),
            cancelled=call.cancelled,
            context=call.context is rrpc.context(),
        )
        stamps = [*call.stamps().values(), time.monotonic_ns()]
        facts["stamps"] = len(stamps) == 4 and stamps == sorted(stamps)
        result = yield call
        facts["result"] = result
        return result + 1000

    with serving(address, Around(look)) as (_, client):
        assert client.call("Shop.price", "apple", count=2, timeout=20.0) == 1010
    assert 0 < facts.pop("left") <= 20
    assert facts.pop("peer")
    assert facts == {
        "method": "Shop.price",
        "arguments": {"article": "apple", "count": 2},
        "idempotent": False,
        "cancelled": False,
        "context": True,
        "stamps": True,
        "result": 10,
    }


def test_the_first_is_the_outermost(serving: Serving, address: str) -> None:
    order: list[str] = []

    def named(name: str) -> Around:
        def unary(call: Any) -> Steps:
            order.append(f"{name} before")
            result = yield call
            order.append(f"{name} after")
            return result

        return Around(unary)

    with serving(address, named("a"), named("b")) as (_, client):
        client.call("Shop.price", "apple")
    assert order == ["a before", "b before", "b after", "a after"]


def test_errors_of_handlers_can_be_replaced(serving: Serving, address: str) -> None:
    def replace(call: Any) -> Steps:
        try:
            return (yield call)
        except ValueError as error:
            raise rrpc.Aborted("replaced") from error
        except rrpc.NotFound:
            return 0

    with serving(address, Around(replace)) as (_, client):
        assert client.call("Shop.price", "none") == 0
        with pytest.raises(rrpc.Aborted, match="replaced") as raised:
            client.call("Shop.price", "broken")
        assert not raised.value.not_executed
        assert client.call("Shop.price", "apple") == 5


def test_an_answer_in_the_handlers_place_is_checked_too(serving: Serving, address: str) -> None:
    def answer(call: Any) -> Steps:
        article = call.arguments["article"]
        if article == "apple":
            return 7
        if article == "pear":
            return "much"
        return (yield call)

    with serving(address, Around(answer)) as (service, client):
        assert client.call("Shop.price", "apple") == 7
        with pytest.raises(
            rrpc.Internal, match=r"Shop.price\(\): the result isn't as declared: expected int"
        ):
            client.call("Shop.price", "pear")
        assert service.handled == []
        assert client.call("Shop.price", "plum") == 4


def test_a_refused_call_has_not_been_executed(serving: Serving, address: str) -> None:
    def refuse(call: Any) -> Steps:
        if call.method == "Shop.price":
            raise rrpc.ResourceExhausted("not today")
        return (yield call)

    with serving(address, Around(refuse)) as (service, client):
        for arguments in (["apple"], [3], []):  # refused before they are looked at
            with pytest.raises(rrpc.ResourceExhausted, match="not today") as raised:
                client.call("Shop.price", *arguments)
            assert raised.value.not_executed
        assert service.handled == []


def test_calls_that_reach_no_handler_are_seen(serving: Serving, address: str) -> None:
    around = Around()
    with serving(address, around) as (_, client):
        with pytest.raises(rrpc.InvalidArgument, match="'article': expected str, got int"):
            client.call("Shop.price", 3)
        with pytest.raises(rrpc.Unimplemented, match="Shop has no method 'sell'; it has"):
            client.call("Shop.sell", 3)
        with pytest.raises(rrpc.Unimplemented, match="there is no service 'Bank' here"):
            client.call("Bank.sell", 3)
    assert around.seen == ["Shop.price", "Shop.sell", "Bank.sell"]


def test_arrays_pass_through(serving: Serving, address: str) -> None:
    values = np.arange(100_000.0)
    with serving(address, Around(), Around()) as (_, client):
        before = rrpc.stats()["pool_bytes_used"]
        assert (client.call("Shop.double", values) == values * 2).all()
        out = np.empty_like(values)
        assert client.call("Shop.double", values, out=out) is out
        assert (out == values * 2).all()
        with pytest.raises(rrpc.InvalidArgument, match="out="):
            client.call("Shop.double", values, out=np.empty(3))
        eventually(lambda: rrpc.stats()["pool_bytes_used"] <= before, what="the arguments' memory comes back")


def test_a_handler_runs_once(serving: Serving, address: str) -> None:
    def again(call: Any) -> Steps:
        yield call
        return (yield call)

    with serving(address, Around(again)) as (service, client):
        with pytest.raises(
            rrpc.RemoteError, match=r"again|unary\(\) in line \d+ yielded the call a second time"
        ):
            client.call("Shop.price", "apple")
        assert service.handled == ["apple"]


def test_awaitables(serving: Serving, address: str) -> None:
    """Around async handlers."""

    async def number() -> int:
        await asyncio.sleep(0)
        return 7

    def awaits(call: Any) -> Steps:
        more = yield number()
        return more + (yield call)

    with serving(address, Around(awaits)) as (shop, client):
        if isinstance(shop, AsyncShop):
            assert client.call("Shop.price", "apple") == 12
        else:
            with pytest.raises(
                rrpc.RemoteError, match=r"yielded an awaitable \(coroutine\), but nothing can"
            ):
                client.call("Shop.price", "apple")


@rrpc.service
class Guarded:
    @rrpc.method
    async def one(self) -> int:
        return 1

    @rrpc.method
    async def many(self) -> AsyncIterator[int]:
        yield 1


def test_a_check_may_be_async_though_no_handler_is_reached(address: str) -> None:
    """A method that is called as what it isn't comes to the loop as every call of it does."""

    async def check(token: str, call: Any) -> bool:
        await asyncio.sleep(0)
        return token == "right"

    with rrpc.serve(Guarded(), listen=address, interceptors=[ServerToken(check)]) as server:
        for token, error in (("right", rrpc.Unimplemented), ("wrong", rrpc.Unauthenticated)):
            metadata = {"authorization": f"Bearer {token}"}
            with rrpc.connect(server.addresses[0], timeout=30.0, metadata=metadata) as client:
                for call in (
                    lambda: client.call("Guarded.many"),
                    lambda: list(rrpc.open_stream(client, "Guarded.one")),
                ):
                    with pytest.raises(error) as raised:
                        call()
                    assert raised.value.not_executed


@pytest.mark.parametrize(
    ("unary", "text"),
    [
        (lambda call: (yield 3), r"Around\.unary\(\) in line \d+ yielded 3: an interceptor yields its call"),
        (lambda call: iter([1 // 0]), "ZeroDivisionError"),
    ],
    ids=["yields a number", "raises"],
)
def test_a_faulty_interceptor_fails_the_call_alone(
    serving: Serving, address: str, unary: Any, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(address, Around(unary)) as (_, client):
        for _ in range(3):
            with pytest.raises(rrpc.RemoteError, match=text):
                client.call("Shop.price", "apple")
    assert "Shop.price() raised" in caplog.text


def test_sleep_ends_with_the_deadline(serving: Serving, address: str) -> None:
    seen: list[BaseException] = []

    def sleepy(call: Any) -> Steps:
        try:
            yield Sleep(3600 if call.arguments["article"] == "apple" else 0.001)
        except rrpc.RpcError as error:
            seen.append(error)
            raise
        return (yield call)

    around = Around(sleepy)
    with serving(address, around) as (service, client):
        with pytest.raises(rrpc.DeadlineExceeded):
            client.call("Shop.price", "apple", timeout=0.05)
        eventually(lambda: seen)
        future = client.start("Shop.price", "apple")
        eventually(lambda: len(around.seen) == 2)
        future.cancel()
        eventually(lambda: len(seen) == 2)
        # The client's own clock may be the first to say so, by a cancel.
        assert isinstance(seen[0], (rrpc.DeadlineExceeded, rrpc.Cancelled))
        assert isinstance(seen[1], rrpc.Cancelled)
        assert client.call("Shop.price", "pear") == 4
        assert service.handled == ["pear"]


def test_observers_see_what_interceptors_answer(serving: Serving, address: str) -> None:
    codes: list[int] = []

    def refuse(call: Any) -> Steps:
        assert call.peer
        assert call.stamps()
        yield Sleep(0.0)
        if call.arguments["article"] == "apple":
            raise rrpc.PermissionDenied("no")
        return (yield call)

    observe: Any = lambda call: codes.append(call.code)  # noqa: E731
    with serving(address, Around(refuse), observer=observe) as (_, client):
        with pytest.raises(rrpc.PermissionDenied) as raised:
            client.call("Shop.price", "apple")
        assert raised.value.not_executed
        client.call("Shop.price", "pear")
        eventually(lambda: sorted(codes) == [0, 7])


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([Around], r"pass an instance, Around\(\.\.\.\), not the class"),
        (
            [rrpc.ClientInterceptor()],
            "instances of rrpc.ServerInterceptor: ClientInterceptor is for a client",
        ),
        (ServerLogging(), "must be a list of them"),
    ],
)
def test_what_is_no_interceptor_of_a_server(given: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        rrpc.Server(Shop(), interceptors=given)


# rrpc-serve

MODULE = """
import rrpc

@rrpc.service
class Echo:
    @rrpc.method
    def echo(self, value: int) -> int:
        return value

class Add(rrpc.ServerInterceptor):
    def __init__(self, what: int = 1) -> None:
        self.what = what

    def unary(self, call):
        return (yield call) + self.what

def ten() -> Add:
    return Add(10)

hundred = Add(100)
nothing = 3

def fails():
    raise KeyError("key")
"""


def test_rrpc_serve_takes_them(serve: ServeFactory) -> None:
    names = ("Add", "ten", "hundred")
    args = [word for name in names for word in ("--interceptor", f"adding:{name}")]
    served = serve(MODULE, "Echo", args=args, module="adding")
    with rrpc.connect(served.address, timeout=20.0) as client:
        assert client.call("Echo.echo", 1) == 112


def test_rrpc_serve_has_them_from_the_file(serve: ServeFactory) -> None:
    (serve.folder / "serve.toml").write_text(
        'interceptor = ["rrpc.interceptors:ServerLogging", "adding:ten"]\n'
    )
    args = ["--config", "serve.toml", "--log-level", "info"]
    served = serve(MODULE, "Echo", args=args, module="adding")
    with rrpc.connect(served.address, timeout=20.0) as client:
        assert client.call("Echo.echo", 1) == 11
    eventually(lambda: "INFO rrpc.calls: server Echo.echo: OK in" in served.log)


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("adding:nothing", "adding:nothing is no rrpc.ServerInterceptor, nor makes one, but int"),
        ("adding:fails", "making adding:fails: KeyError: 'key'"),
        ("adding:Echo", "adding:Echo is no rrpc.ServerInterceptor, nor makes one, but Echo"),
        ("adding:missing", "module adding has no missing"),
        ("adding", "'adding' isn't of the form module:NAME"),
        ("rrpc.interceptors:ClientLogging", "is no rrpc.ServerInterceptor"),
    ],
)
def test_rrpc_serve_says_which_it_cant_use(serve: ServeFactory, target: str, text: str) -> None:
    (serve.folder / "adding.py").write_text(MODULE)
    done = run_serve("adding:Echo", "--interceptor", target, cwd=serve.folder)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "rrpc-serve: --interceptor: " in done.stderr
    assert text in done.stderr
