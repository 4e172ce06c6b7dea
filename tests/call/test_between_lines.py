"""What another thread does between any two lines of this one: cancel its call, close its client, stop the server."""

import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from flow import flow_rpc, nothing_left
from processes import patience, volume

import rrpc
from rrpc.interceptors import ClientToken

CODE = str(Path(rrpc.__file__).parent)
STEPS_MAX = 150
IN_BETWEEN_SECONDS = 0.2  # for what the other thread does; it may have to wait for this one


class Between:
    """Has another thread do it, before the line of that number that this thread runs of rrpc's own code."""

    def __init__(self, step: int, act: Callable[[], object]) -> None:
        self.before = sys.gettrace()  # what counts branches
        self.step, self.lines = step, 0
        self.thread = threading.Thread(target=act, daemon=True)

    def __call__(self, frame: FrameType, event: str, arg: object) -> "Between | None":
        if not frame.f_code.co_filename.startswith(CODE):
            return None
        self.lines += event == "line"
        if self.lines == self.step and not self.thread.ident:
            sys.settrace(self.before)
            self.thread.start()
            self.thread.join(IN_BETWEEN_SECONDS)
        return self

    def __enter__(self) -> "Between":
        sys.settrace(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        sys.settrace(self.before)
        if not self.thread.ident:
            self.thread.start()
        self.thread.join()


def items(stream: Any) -> None:
    for _ in stream:
        pass


def send(stream: Any) -> None:
    for value in range(3):
        stream.send(value)
    stream.finish()


def send_and_take(stream: Any) -> None:
    stream.send(1)
    next(stream)
    stream.finish()
    items(stream)


def send_blocks(stream: Any) -> None:
    for i, size in enumerate((8, 100_000)):
        stream.send(np.full(size, i, np.uint8))
    stream.finish()


# How a call begins, and what is done with it.
CALLS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], object]]] = {
    "future": (lambda flow: flow.counts.start(), lambda future: future.result()),
    "callback": (lambda flow: flow.counts.start(), lambda future: future.add_done_callback(lambda f: None)),
    "exception": (lambda flow: flow.counts.start(), lambda future: future.exception()),
    "items": (lambda flow: flow.count(5), items),
    "blocks": (lambda flow: flow.blocks(3, 100_000), items),
    "send": (lambda flow: flow.add.open(), send),
    "both": (lambda flow: flow.sums.open(), send_and_take),
    "send blocks": (lambda flow: flow.weigh.open(), send_blocks),
}


def steps(begin: Callable[[int], bool]) -> None:
    """Begins with each line in turn; False: there was no such line."""
    for step in range(1, STEPS_MAX):
        if not begin(step):
            return


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_a_cancel(flow: Any, name: str) -> None:
    begin, use = CALLS[name]

    def cancelled_at(step: int) -> bool:
        call = begin(flow)
        with Between(step, call.cancel) as between, suppress(rrpc.Cancelled, CancelledError):
            use(call)
        return between.lines >= step

    with nothing_left(flow):
        steps(cancelled_at)


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_a_close(flow: Any, flow_address: str, name: str) -> None:
    begin, use = CALLS[name]

    def closed_at(step: int) -> bool:
        with flow_rpc.FlowClient(flow_address, timeout=30.0) as client:
            ended = suppress(rrpc.Unavailable, rrpc.Cancelled, CancelledError)
            with Between(step, client.close) as between, ended:
                use(begin(client))
        return between.lines >= step

    with nothing_left(flow):
        steps(closed_at)


@rrpc.service
class Late:
    @rrpc.method
    async def echo(self, value: int) -> int:
        return value

    @rrpc.method
    def token(self) -> str:
        return str(rrpc.context().metadata["authorization"])


@pytest.mark.slow
def test_a_second_stop() -> None:
    def stopped_at(step: int) -> bool:
        server = rrpc.serve(Late(), listen="tcp://127.0.0.1:0")
        with Between(step, server.stop) as between:
            assert server.stop(30.0)
        return between.lines >= step

    steps(stopped_at)


@pytest.mark.slow
def test_a_stop_amid_the_start() -> None:
    def stopped_at(step: int) -> bool:
        server = rrpc.Server(Late(), listen="tcp://127.0.0.1:0")
        with Between(step, server.stop) as between, suppress(rrpc.Unavailable):
            server.start()
        assert server.stop(30.0)
        return between.lines >= step

    steps(stopped_at)


@pytest.mark.slow
def test_a_token_that_another_call_gets() -> None:
    with rrpc.serve(Late(), listen="tcp://127.0.0.1:0") as server:

        def got_at(step: int) -> bool:
            token = ClientToken(lambda: "secret", allow_clear=True)
            with (
                rrpc.connect(server.addresses[0], interceptors=[token]) as client,
                Between(step, lambda: client.call("Late.token")) as between,
            ):
                assert client.call("Late.token") == "Bearer secret"
            return between.lines >= step

        steps(got_at)


def test_callbacks_come_when_the_call_has_ended() -> None:
    """Servers that drain: calls that they refuse go elsewhere, while another thread looks at the futures."""
    early: list[Any] = []

    def called_back(future: Any) -> None:
        if not future.done():
            early.append(future)

    with rrpc.serve(Late(), listen="tcp://127.0.0.1:0") as stays:
        for _ in range(volume(15, 3)):
            with rrpc.serve(Late(), listen="tcp://127.0.0.1:0", workers=1) as goes:
                client = rrpc.connect([goes.addresses[0], stays.addresses[0]], timeout=patience(30))
                drained = threading.Event()
                futures: list[Any] = []

                def drain(goes: rrpc.Server = goes, drained: threading.Event = drained) -> None:
                    goes.drain(patience(30))
                    drained.set()

                def look(futures: list[Any] = futures, drained: threading.Event = drained) -> None:
                    while not drained.is_set():
                        for future in futures[-40:]:
                            future.done()

                threads = [threading.Thread(target=drain), threading.Thread(target=look)]
                while not drained.is_set():
                    futures.append(client.start("Late.echo", 1))
                    futures[-1].add_done_callback(called_back)
                    if len(futures) == 100:
                        for thread in threads:
                            thread.start()
                for thread in threads:
                    thread.join()
                assert {future.result() for future in futures} == {1}
                client.close()
    assert not early


def test_callbacks_may_use_the_stream_that_their_thread_uses(flow: Any) -> None:
    sent: list[bool] = []

    def use() -> None:
        stream = flow.add.open()

        def called_back(future: Any) -> None:
            sent.append(threading.current_thread() is thread)
            with suppress(rrpc.RpcError, RuntimeError):
                stream.send(1)
                stream.done()

        while not any(sent):
            flow.counts.start().add_done_callback(called_back)
            stream.send(1)
        stream.cancel()

    thread = threading.Thread(target=use, daemon=True)
    thread.start()
    thread.join(patience(30))
    assert not thread.is_alive()
