"""How interceptors are run: order, errors, waiting, and what a wrong one is told."""

import asyncio
import gc
import weakref
from collections.abc import Callable, Generator
from typing import Any

import pytest

from rrpc import interceptors
from rrpc._call.chain import REFUSED, Chain, drive, drive_async
from rrpc._call.stream_hooks import StreamHooks
from rrpc.interceptors import ClientInterceptor, ServerInterceptor, Sleep

Steps = Generator[Any, Any, Any]
Unary = Callable[[Any], Steps]


class Call:
    def __init__(self) -> None:
        self.seen: list[str] = []


def run(style: str, links: list[Unary], make: Callable[[], Any], once: bool = False, call: Any = None) -> Any:
    """``make`` is the call itself; in either style it is the same chain."""
    chain = Chain(links, call or Call(), once=once)

    def do(asked: Any) -> Any:
        if asked is chain.call:
            return make()
        return None if type(asked) is Sleep else REFUSED

    async def do_async(asked: Any) -> Any:
        if asked is chain.call:
            return make()
        return await (asyncio.sleep(asked.seconds) if type(asked) is Sleep else asked)

    async def in_loop() -> Any:
        return await drive_async(chain, do_async, chain.step())

    return drive(chain, do) if style == "blocking" else asyncio.run(in_loop())


@pytest.fixture(params=["blocking", "asyncio"])
def style(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def named(name: str) -> Unary:
    def unary(call: Call) -> Steps:
        call.seen.append(f"{name} before")
        result = yield call
        call.seen.append(f"{name} after")
        return f"{name}({result})"

    return unary


def test_the_first_is_the_outermost(style: str) -> None:
    call = Call()
    assert run(style, [named("a"), named("b"), named("c")], lambda: "x", call=call) == "a(b(c(x)))"
    assert call.seen == ["a before", "b before", "c before", "c after", "b after", "a after"]


def test_errors_are_raised_at_the_yield(style: str) -> None:
    def replaces(call: Call) -> Steps:
        try:
            return (yield call)
        except KeyError as error:
            raise LookupError("replaced") from error

    def answers(call: Call) -> Steps:
        try:
            return (yield call)
        except LookupError:
            return "answered"

    def fail() -> Any:
        raise KeyError("x")

    with pytest.raises(LookupError, match="replaced") as raised:
        run(style, [replaces], fail)
    assert isinstance(raised.value.__cause__, KeyError)
    assert run(style, [answers, replaces], fail) == "answered"
    with pytest.raises(KeyError):
        run(style, [named("a"), named("b")], fail)


def test_an_answer_in_the_calls_place(style: str) -> None:
    def cached(call: Call) -> Steps:
        if "cached" not in call.seen:
            yield call
        return "cached"

    call = Call()
    call.seen.append("cached")
    made = run(style, [named("a"), cached], lambda: pytest.fail("the call was made"), call=call)
    assert made == "a(cached)"


def test_the_call_again(style: str) -> None:
    tries: list[int] = []

    def fail_twice() -> str:
        tries.append(len(tries))
        if len(tries) < 3:
            raise ConnectionError
        return "x"

    def retries(call: Call) -> Steps:
        while True:
            try:
                return (yield call)
            except ConnectionError:  # noqa: PERF203
                yield Sleep(0)

    call = Call()
    assert run(style, [named("a"), retries, named("b")], fail_twice, call=call) == "a(b(x))"
    assert call.seen == ["a before", "b before", "b before", "b before", "b after", "a after"]


def test_an_innermost_link_asks_for_whatever_it_needs() -> None:
    def innermost(call: Call) -> Steps:
        first = yield 1
        return first + (yield 2)

    call = Call()
    chain = Chain([named("a"), named("b")], call, innermost=innermost)
    assert chain.step() == 1
    assert chain.step("x") == 2
    assert not chain.done
    assert chain.step("y") == "a(b(xy))"
    assert chain.done


def test_what_a_handler_raises_may_be_a_stopiteration() -> None:
    def stop() -> Any:
        raise StopIteration("handler's")

    def check(call: Call) -> Steps:
        with pytest.raises(StopIteration, match="handler's"):
            yield call
        return "passed"

    assert run("blocking", [check, named("a"), named("b")], stop) == "passed"


@pytest.mark.filterwarnings("error")  # of a coroutine that was never awaited
def test_awaitables(style: str) -> None:
    async def token() -> str:
        await asyncio.sleep(0)
        return "token"

    def awaits(call: Call) -> Steps:
        call.seen.append((yield token()))
        return (yield call)

    call = Call()
    if style == "asyncio":
        assert run(style, [awaits], lambda: "x", call=call) == "x"
        assert call.seen == ["token"]
    else:
        with pytest.raises(
            TypeError, match=r"awaits\(\) in line \d+ yielded an awaitable \(coroutine\), but nothing can be"
        ):
            run(style, [named("a"), awaits], lambda: "x")


async def _coroutine(call: Call) -> None: ...


async def _async_generator(call: Call) -> Any:
    yield call


def _plain(call: Call) -> Any:
    return 3


def _yields_nothing(call: Call) -> Steps:
    yield


def _yields_another(call: Call) -> Steps:
    yield Call


def _yields_twice(call: Call) -> Steps:
    yield call
    return (yield call)


def _yields_forever(call: Call) -> Steps:
    while True:
        yield call


@pytest.mark.parametrize(
    ("link", "error", "text"),
    [
        (_coroutine, TypeError, r"_coroutine\(\) is `async def`: leave out `async`, and yield what would be"),
        (_async_generator, TypeError, r"_async_generator\(\) is `async def`: leave out `async`; a generator"),
        (_plain, TypeError, r"_plain\(\) has no `yield` in it and gave 3: write `result = yield call`"),
        (_yields_nothing, TypeError, r"_yields_nothing\(\) in line \d+ yielded None: an interceptor yields"),
        (_yields_another, TypeError, r"_yields_another\(\) in line \d+ yielded <class .*Call'>: an inter"),
        (_yields_twice, RuntimeError, r"_yields_twice\(\) in line \d+ yielded the call a second time"),
        (_yields_forever, RuntimeError, r"_yields_forever\(\) in line \d+ yielded the call 1000 times"),
    ],
)
def test_wrong_ones_are_named(style: str, link: Any, error: type[Exception], text: str) -> None:
    seen: list[BaseException] = []

    def outer(call: Call) -> Steps:
        try:
            return (yield call)
        except Exception as raised:
            seen.append(raised)
            raise

    with pytest.raises(error, match=text):
        run(style, [outer, link], lambda: "x", once=link is _yields_twice)
    assert len(seen) == 1  # it fails as the call would


def test_the_class_is_in_the_name(style: str) -> None:
    class Wrong(ClientInterceptor):
        def unary(self, call: Any) -> Steps:
            yield 1

    with pytest.raises(TypeError, match=r"test_interceptor_chain\..*Wrong\.unary\(\) in line \d+ yielded 1:"):
        run(style, [Wrong().unary], lambda: "x")


def test_interrupts_pass_through(style: str) -> None:
    closed: list[bool] = []

    def link(call: Call) -> Steps:
        try:
            return (yield call)
        finally:
            closed.append(True)

    def interrupted() -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(style, [link], interrupted)
    assert closed == [True]


def test_close_runs_what_is_in_finally() -> None:
    call = Call()

    def generator(call: Call) -> Steps:
        try:
            return (yield call)
        finally:
            call.seen.append("closed")

    def link(call: Call) -> Steps:
        made.append(generator(call))
        return made[-1]

    made: list[Steps] = []
    chain = Chain([link, link], call)
    assert chain.step() is call
    chain.close()
    assert call.seen == ["closed", "closed"]
    assert chain.done


def test_nothing_is_left_for_the_collector(style: str) -> None:
    class Large: ...

    kept: list[weakref.ref[Large]] = []

    def fails() -> Any:
        large = Large()
        kept.append(weakref.ref(large))
        raise KeyError("x")

    gc.collect()
    gc.disable()
    try:
        with pytest.raises(KeyError):
            run(style, [named("a"), named("b")], fails)
        if style == "blocking":  # asyncio.run leaves cycles of its own
            assert kept[0]() is None
    finally:
        gc.enable()


# What may be given


def test_what_isnt_overridden_has_no_part() -> None:
    class OnlyStreams(ClientInterceptor):
        def stream(self, call: Any) -> Steps:
            return (yield call)

    class OnlyUnary(ClientInterceptor):
        def unary(self, call: Any) -> Steps:
            return (yield call)

    both = interceptors.checked([OnlyStreams(), OnlyUnary()], ClientInterceptor)
    assert [link.__self__ for link in interceptors.links(both, "unary")] == [both[1]]  # type: ignore[attr-defined]
    assert [link.__self__ for link in interceptors.links(both, "stream")] == [both[0]]  # type: ignore[attr-defined]
    assert interceptors.checked(None, ClientInterceptor) == ()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([ClientInterceptor], r"pass an instance, ClientInterceptor\(\.\.\.\), not the class"),
        ([ServerInterceptor()], "ServerInterceptor is for a server"),
        ([3], "instances of rrpc.ClientInterceptor: a int isn't"),
        (ClientInterceptor(), "must be a list of them, not a ClientInterceptor"),
        (3, "must be a list of them, not a int"),
        ("log", "str 'log'"),
    ],
)
def test_what_is_no_interceptor(given: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        interceptors.checked(given, ClientInterceptor)


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_sleep_takes_seconds(seconds: float) -> None:
    with pytest.raises(ValueError, match="from 0 up, not"):
        Sleep(seconds)


# Hooks of streams


def appending(text: str) -> Callable[[str], str]:
    return lambda item: item + text


@pytest.mark.parametrize("serving", [False, True])
def test_items_pass_the_interceptors_in_order(serving: bool) -> None:
    hooks = StreamHooks(serving=serving)
    assert not hooks
    ended: list[tuple[str, Any]] = []
    for depth in (2, 1):  # whatever the order in which they ask
        hooks.map_sent(depth, appending(f"s{depth}"))
        hooks.map_received(depth, appending(f"r{depth}"))
        hooks.map_received(depth, appending("'"))
        hooks.on_end(depth, lambda error, depth=depth: ended.append((f"e{depth}", error)))  # type: ignore[misc]
    assert hooks
    assert hooks.sent("") == ("s2s1" if serving else "s1s2")
    assert hooks.received("") == ("r1'r2'" if serving else "r2'r1'")
    error = KeyError("x")
    hooks.end(error)
    hooks.end(None)
    assert ended == [("e2", error), ("e1", error)]


def test_a_call_made_again_forgets_the_inner_ones() -> None:
    hooks = StreamHooks(serving=False)
    call = Call()

    def outer(call: Call) -> Steps:
        hooks.map_sent(1, appending("o"))
        yield call
        return (yield call)

    def inner(call: Call) -> Steps:
        hooks.map_sent(2, appending("i"))
        return (yield call)

    chain = Chain([outer, inner], call, hooks=hooks)
    drive(chain, lambda asked: "x")
    assert hooks.sent("") == "oi"


def test_an_on_end_that_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    hooks = StreamHooks(serving=False)
    ended: list[Any] = []

    def fails(error: Any) -> None:
        raise KeyError("mine")

    hooks.on_end(2, fails)
    hooks.on_end(1, ended.append)
    hooks.end(None)
    assert ended == [None]
    assert "given to on_end() raised" in caplog.text


def test_hooks_are_functions() -> None:
    with pytest.raises(TypeError, match=r"map_sent\(\) takes a function, not int"):
        StreamHooks(serving=False).map_sent(1, 3)  # type: ignore[arg-type]
