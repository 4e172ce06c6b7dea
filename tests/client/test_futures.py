"""Futures of calls where those of concurrent.futures are expected."""

import asyncio
import concurrent.futures
import contextvars
import gc
import os
import random
import threading
import traceback
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from lab import lab, lab_address, lab_server
from processes import eventually, patience, volume

import rrpc
from rrpc._call.chain import Chain
from rrpc._call.context import enter
from rrpc._client import blocking_driver
from rrpc._client.client import Untyped
from rrpc._client.futures import only
from rrpc.interceptors import Sleep

__all__ = ["lab", "lab_address", "lab_server"]


class Nothing(rrpc.ClientInterceptor):
    """Takes calls off the fast path."""

    def unary(self, call: Any) -> Any:
        return (yield call)


@pytest.fixture(params=["plain", "driven"])
def client(request: pytest.FixtureRequest, lab: rrpc.Client) -> rrpc.Client:
    """Both kinds of futures: those of plain calls, and of calls that go through something."""
    return lab if request.param == "plain" else lab.with_options(interceptors=[Nothing()])


def test_they_are_futures(client: rrpc.Client) -> None:
    future = client.start("Lab.add", 1)
    assert isinstance(future, concurrent.futures.Future)
    assert future.result() == 2
    assert future.metadata() == {}


def test_wait(client: rrpc.Client, request: pytest.FixtureRequest) -> None:
    name = request.node.name
    held = [client.start("Lab.hold", f"{name}-{i}") for i in range(3)]
    quick = [client.start("Lab.add", i) for i in range(50)]
    assert concurrent.futures.wait(quick, timeout=patience(20)).done == set(quick)
    done, waiting = concurrent.futures.wait([*held, *quick], timeout=0)
    assert waiting == set(held)
    assert done == set(quick)
    first = threading.Timer(0.05, lambda: client.call("Lab.release", f"{name}-1"))
    first.start()
    done, waiting = concurrent.futures.wait(
        held, timeout=patience(20), return_when=concurrent.futures.FIRST_COMPLETED
    )
    assert done == {held[1]}
    for i in (0, 2):
        client.call("Lab.release", f"{name}-{i}")
    assert concurrent.futures.wait(held, timeout=patience(20)).not_done == set()
    failed = client.start("Lab.fail", "rpc", "x")
    ended = concurrent.futures.wait(
        [failed, client.start("Lab.add", 1)], patience(20), concurrent.futures.FIRST_EXCEPTION
    )
    assert failed in ended.done
    assert isinstance(failed.exception(), rrpc.RpcError)
    first.join()


def test_as_completed(client: rrpc.Client, request: pytest.FixtureRequest) -> None:
    names = [f"{request.node.name}-{i}" for i in range(5)]
    held: dict[concurrent.futures.Future[Any], str] = {client.start("Lab.hold", name): name for name in names}
    random.shuffle(names)
    order = []
    client.call("Lab.release", names[0])
    for future in concurrent.futures.as_completed(held, timeout=patience(20)):
        order.append(held[future])
        if len(order) < len(names):
            client.call("Lab.release", names[len(order)])
    assert order == names
    cancelled = client.start("Lab.hold", f"{request.node.name}-never")
    assert cancelled.cancel()
    assert list(concurrent.futures.as_completed([cancelled], timeout=patience(20))) == [cancelled]


def test_in_asyncio(client: rrpc.Client, request: pytest.FixtureRequest) -> None:
    async def work() -> None:
        wrapped = [asyncio.wrap_future(client.start("Lab.add", i)) for i in range(100)]
        assert await asyncio.gather(*wrapped) == list(range(1, 101))
        with pytest.raises(rrpc.InvalidArgument):
            await asyncio.wrap_future(client.start("Lab.add", "x"))
        held = client.start("Lab.hold", request.node.name)
        waiting = asyncio.wrap_future(held)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.to_thread(eventually, held.cancelled)

    asyncio.run(work())


def test_thousands_in_any_order(client: rrpc.Client) -> None:
    before = threading.active_count()
    count = volume(2000, 500)
    futures = {client.start("Lab.add", i, 0): i for i in range(count)}
    shuffled = list(futures)
    random.shuffle(shuffled)
    assert all(future.result() == futures[future] for future in shuffled)
    assert threading.active_count() < before + 20


def test_a_timeout_in_the_past_is_no_wait(client: rrpc.Client, request: pytest.FixtureRequest) -> None:
    name = request.node.name
    future = client.start("Lab.hold", name)
    for timeout in (-1, -1e-9, 0):
        for wait in (future.result, future.exception):
            with pytest.raises(TimeoutError) as raised:
                wait(timeout)
            assert not isinstance(raised.value, rrpc.RpcError)
    client.call("Lab.release", name)
    assert future.result(patience(20)) is True
    assert future.result(-1) is True
    assert future.exception(-1) is None


class Refused:
    """A call of the core that no handler has seen."""

    def done(self) -> bool:
        return True

    def result(self, timeout: float | None) -> Any:
        error = rrpc.Unavailable("takes no new calls")
        error.not_executed = True
        raise error

    def on_done(self, callback: Any) -> None:
        callback()


def test_a_call_that_moves_on_takes_nothing_from_who_waits(lab: rrpc.Client) -> None:
    """A handler may wait for a call that isn't its own; and others may end calls meanwhile."""
    seen: list[Any] = []

    prepared = lab._prepare(Untyped("Lab.add", (1,), {}, None), None, None)

    def again() -> Chain:
        def free() -> None:
            seen.append(blocking_driver.lock.acquire(timeout=patience(10)))
            blocking_driver.lock.release()

        thread = threading.Thread(target=free)
        thread.start()
        thread.join()
        chain = prepared.course()
        seen.append(chain.call.links_around)
        return chain

    def in_handler() -> int:
        handler: Any = SimpleNamespace(ended=False, links=("the handler's",))
        enter(handler)
        future: rrpc.Future[int] = rrpc.Future(Refused(), only, again)  # type: ignore[arg-type]
        return future.result(patience(20))

    assert contextvars.copy_context().run(in_handler) == 2
    assert seen == [True, ()]


def test_a_finalizer_may_end_calls_wherever_it_runs(lab: rrpc.Client) -> None:
    ended = threading.Event()

    def use() -> None:
        with blocking_driver.lock:  # as a collection may find it
            future = lab.start("Lab.add", 1)
            future.add_done_callback(lambda _: ended.set())
            assert future.result(patience(10)) == 2

    threading.Thread(target=use, daemon=True).start()
    assert ended.wait(patience(10))


def test_a_forked_child_has_a_lock_of_its_own(lab: rrpc.Client) -> None:
    holding, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with blocking_driver.lock:
            holding.set()
            let_go.wait(patience(20))

    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait(patience(10))
    pid = os.fork()
    if pid == 0:
        os._exit(0 if blocking_driver.lock.acquire(timeout=2.0) else 1)
    let_go.set()
    thread.join()
    assert os.waitpid(pid, 0)[1] == 0


class Locking:
    """A callback that takes a lock which isn't reentrant."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.taken = 0
        self.amid: list[str] = []
        """What was going on where it was called by the thread that had the lock."""

    def __call__(self, future: Any) -> None:
        if self.lock.acquire(timeout=patience(5)):
            self.lock.release()
            self.taken += 1
        else:
            self.amid += traceback.format_stack()

    def was_called(self, times: int) -> bool:
        assert self.amid == []
        return self.taken == times


def test_no_callback_comes_amid_a_call_that_begins(client: rrpc.Client) -> None:
    locking = Locking()
    count = volume(2000, 200)
    for number in range(count):
        with locking.lock:
            future = client.start("Lab.add", number)
        future.add_done_callback(locking)
    eventually(lambda: locking.was_called(count))


class Sleeping(rrpc.ClientInterceptor):
    """As one that retries does between two attempts."""

    def unary(self, call: Any) -> Any:
        yield Sleep(patience(60))
        return (yield call)


@pytest.mark.parametrize("waits_for", ["the reply", "a time", "a connection"])
def test_no_callback_comes_amid_a_cancel(
    client: rrpc.Client, waits_for: str, request: pytest.FixtureRequest
) -> None:
    locking = Locking()
    if waits_for == "the reply":
        future = client.start("Lab.hold", request.node.name)
    elif waits_for == "a time":
        future = client.with_options(interceptors=[Sleeping()]).start("Lab.add", 1)
    else:
        future = rrpc.connect("tcp://127.0.0.1:1", lazy=True, wait_for_ready=True).start("Lab.add", 1)
    future.add_done_callback(locking)
    with locking.lock:
        assert future.cancel()
    eventually(lambda: locking.was_called(1))
    assert future.cancelled()


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_a_result_goes_with_its_last_user(lab_address: str, timeout: float | None) -> None:
    """Of a call that waited for its connection, too: nothing is left to the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        with rrpc.connect(lab_address, lazy=True) as client:
            future = client.start("Lab.make", 1_000_000, timeout=timeout and patience(timeout))
            result = weakref.ref(future.result())
            assert result() is not None
            del future
            eventually(lambda: result() is None)
    finally:
        gc.enable()
