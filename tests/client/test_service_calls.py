"""Calls through a server in this process: by name and by stub, futures, wrong calls, misuse of servers."""

import inspect
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import rrpc


@dataclass
class Point:
    x: float
    y: float = 0.0
    rows: NDArray[np.float32] | None = None
    inner: list["Point"] = field(default_factory=list)


@rrpc.service
class Desk:
    """One of each."""

    def __init__(self) -> None:
        self.release = threading.Event()

    @rrpc.method
    def echo(self, data: bytes) -> bytes:
        return data

    @rrpc.method
    def add(self, a: int, b: float = 1.0, *, c: int = 0) -> float:
        return a + b + c

    @rrpc.method
    def double(self, rows: NDArray[np.float32]) -> tuple[NDArray[np.float32], int]:
        return rows * 2, rows.ndim

    @rrpc.method
    def twins(self) -> list[NDArray[np.float64]]:
        return [np.zeros(3), np.ones(3)]

    @rrpc.method
    def shift(self, point: Point, by: float) -> Point:
        return Point(point.x + by, point.y, point.rows)

    @rrpc.method
    def fail(self, how: str) -> int:
        if how == "exit":
            raise SystemExit(3)
        if how == "missing":
            raise rrpc.NotFound("no such row")
        raise KeyError(how)

    @rrpc.method
    def lie(self, how: str) -> Any:
        return {"object": [object()], "objects": np.array([None])}[how]

    @rrpc.method
    def wrong(self) -> int:
        return "a"  # type: ignore[return-value]

    @rrpc.method
    def wait(self) -> None:
        self.release.wait(30)


@pytest.fixture(scope="module")
def desk() -> Iterator[rrpc.Client]:
    service = Desk()
    with (
        rrpc.serve(service, listen="tcp://127.0.0.1:0", tracebacks=True) as server,
        rrpc.connect(server.addresses[0], timeout=20.0) as client,
    ):
        yield client
        service.release.set()


class _Shift(rrpc.UnaryMethod[Point]):
    rpc_name = "Desk.shift"

    def __call__(self, point: Point, by: float = 1.0, *, timeout: float | None = None) -> Point:
        return self._call((point, by), timeout)


class _Wrong(rrpc.UnaryMethod[bytes]):
    rpc_name = "Desk.add"

    def __call__(self, a: int, *, timeout: float | None = None) -> bytes:
        return self._call((a,), timeout)


class DeskClient(rrpc.Client):
    shift = rrpc.stub(_Shift)
    wrong = rrpc.stub(_Wrong)


def test_calls_by_name(desk: rrpc.Client) -> None:
    assert desk.call("Desk.echo", b"abc") == b"abc"
    assert desk.call("Desk.echo", bytes(10_000)) == bytes(10_000)
    assert desk.call("Desk.add", 1) == 2.0
    assert desk.call("Desk.add", 1, c=5, b=2) == 8.0
    rows, ndim = desk.call("Desk.double", np.ones((2, 3), np.float32))
    assert (rows == 2).all()
    assert ndim == 2
    assert desk.call("Desk.shift", {"x": 1}, 2) == {"x": 3.0, "y": 0.0, "rows": None, "inner": []}


@pytest.mark.parametrize("use", ["call", "start"])
def test_a_method_is_named_by_text(desk: rrpc.Client, use: str) -> None:
    with pytest.raises(TypeError, match=r"such as 'Service\.method', not int"):
        getattr(desk, use)(5)
    with pytest.raises(rrpc.Unimplemented):
        desk.call("Desk.\ud800")


@pytest.mark.parametrize("shape", [(2, 3), (200, 300), (0, 3)], ids=["small", "large", "empty"])
def test_out_takes_the_result(desk: rrpc.Client, shape: tuple[int, int]) -> None:
    out = np.zeros(shape, np.float32)
    rows, _ = desk.call("Desk.double", np.ones(shape, np.float32), out=out)
    assert rows is out
    assert (out == 2).all()


def test_out_that_does_not_fit_is_left_alone(desk: rrpc.Client) -> None:
    out = np.zeros((3, 4), np.float32)
    with pytest.raises(rrpc.InvalidArgument) as caught:
        desk.call("Desk.double", np.ones((2, 3), np.float32), out=out)
    assert str(caught.value) == "out= is float32 (3, 4), the result is float32 (2, 3)"
    assert not out.any()
    with pytest.raises(rrpc.InvalidArgument, match=r"as are 2 arrays"):
        desk.call("Desk.twins", out=np.zeros(3))
    with pytest.raises(rrpc.InvalidArgument, match="the result has no array"):
        desk.call("Desk.add", 1, out=out)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ([1.0], "must be an array, or share its memory by DLPack or as a buffer, not list"),
        (np.zeros((4, 4))[:, ::2], "must be C-contiguous"),
        (np.broadcast_to(np.zeros(1), 1), "read-only"),
        (np.array([None]), "fixed-size dtype"),
    ],
)
def test_out_must_be_usable(desk: rrpc.Client, out: Any, message: str) -> None:
    with pytest.raises(rrpc.InvalidArgument, match=message):
        desk.call("Desk.twins", out=out)


WRONG_CALLS: list[tuple[Callable[[rrpc.Client], Any], type[rrpc.RpcError], str]] = [
    (lambda c: c.call("Desk.add"), rrpc.InvalidArgument, "Desk.add() missing a required argument: 'a'"),
    (
        lambda c: c.call("Desk.add", 1, z=1),
        rrpc.InvalidArgument,
        "Desk.add() got an unexpected keyword argument 'z'",
    ),
    (
        lambda c: c.call("Desk.add", 1, a=1),
        rrpc.InvalidArgument,
        "Desk.add() got multiple values for argument 'a'",
    ),
    (
        lambda c: c.call("Desk.echo", b"", b""),
        rrpc.InvalidArgument,
        "Desk.echo() takes 1 positional argument but 2 were given",
    ),
    (
        lambda c: c.call("Desk.add", "a"),
        rrpc.InvalidArgument,
        "Desk.add(): argument 'a': expected int, got str",
    ),
    (
        lambda c: c.call("Desk.shift", {"x": "a"}, 1.0),
        rrpc.InvalidArgument,
        "Desk.shift(): argument 'point'.x: expected float, got str",
    ),
    (
        lambda c: c.call("Desk.add", a=[{"k": object()}]),
        rrpc.InvalidArgument,
        "argument 'a'[0]['k']: object can't be sent",
    ),
    (lambda c: c.call("Desk.ad"), rrpc.Unimplemented, "Desk has no method 'ad'; it has echo, add, double"),
    (lambda c: c.call("add"), rrpc.Unimplemented, "'add' names no service: write Desk.method"),
    (lambda c: c.call("Disk.add"), rrpc.Unimplemented, "there is no service 'Disk' here"),
    (lambda c: c.call("Desk.fail", "missing"), rrpc.NotFound, "no such row"),
    (lambda c: c.call("Desk.fail", "exit"), rrpc.Internal, "Desk.fail(): the handler raised SystemExit"),
    (
        lambda c: c.call("Desk.wrong"),
        rrpc.Internal,
        "Desk.wrong(): the result isn't as declared: expected int, got str",
    ),
    (
        lambda c: c.call("Desk.lie", "object"),
        rrpc.Internal,
        "Desk.lie(): the result[0]: object can't be sent",
    ),
    (lambda c: c.call("Desk.lie", "objects"), rrpc.Internal, "arrays of dtype object can't be sent"),
]


@pytest.mark.parametrize(("call", "error", "message"), WRONG_CALLS, ids=[m for _, _, m in WRONG_CALLS])
def test_wrong_calls_say_why_and_leave_the_server_well(
    desk: rrpc.Client, call: Callable[[rrpc.Client], Any], error: type[rrpc.RpcError], message: str
) -> None:
    with pytest.raises(error) as caught:
        call(desk)
    assert type(caught.value) is error
    assert message in str(caught.value)
    assert desk.call("Desk.add", 1) == 2.0


def test_a_handler_s_exception_comes_with_type_message_and_traceback(desk: rrpc.Client) -> None:
    with pytest.raises(rrpc.RemoteError) as caught:
        desk.call("Desk.fail", "unknown")
    error = caught.value
    assert (error.type_name, error.message) == ("KeyError", "'unknown'")
    assert error.remote_traceback is not None
    assert "raise KeyError(how)" in error.remote_traceback
    assert "rrpc/_server/server.py" not in error.remote_traceback


def test_tracebacks_stay_on_the_server_by_default() -> None:
    with (
        rrpc.serve(Desk(), listen="tcp://127.0.0.1:0") as server,
        rrpc.connect(server.addresses[0]) as client,
        pytest.raises(rrpc.RemoteError) as caught,
    ):
        client.call("Desk.fail", "unknown")
    assert caught.value.remote_traceback is None


def test_stubs(desk: rrpc.Client) -> None:
    with DeskClient(desk.address) as client:
        assert client.shift(Point(1.0), 2) == Point(3.0)
        assert client.shift is client.shift
        assert DeskClient.shift(client, Point(1.0), 2) == Point(3.0)
        with pytest.raises(TypeError, match=r"DeskClient\.shift\(\) missing 1 required positional argument"):
            client.shift()  # type: ignore[call-arg]
        with pytest.raises(
            rrpc.InvalidArgument, match=r"Desk\.shift\(\): argument 'point': expected Point, got int"
        ):
            client.shift(5)  # type: ignore[arg-type]
        with pytest.raises(
            rrpc.Internal, match=r"Desk\.add\(\): the result isn't as declared: expected bytes"
        ):
            client.wrong(1)


def test_a_method_shows_itself_as_one(desk: rrpc.Client) -> None:
    shift: Any = DeskClient.shift
    assert inspect.isfunction(shift)
    assert (shift.__name__, shift.__qualname__) == ("shift", "DeskClient.shift")
    assert list(inspect.signature(shift).parameters) == ["self", "point", "by", "timeout"]
    assert "DeskClient.shift" in repr(shift)
    with DeskClient(desk.address) as client:
        assert client.shift.__name__ == "shift"
        assert repr(client.shift) == "<remote method Desk.shift>"
        assert list(inspect.signature(client.shift).parameters) == ["point", "by", "timeout"]
        assert shift(client, Point(1.0), 2) == Point(3.0)


def test_a_future_says_how_far_it_is(desk: rrpc.Client) -> None:
    future = desk.start("Desk.wait")
    assert "running" in repr(future)
    future.cancel()
    assert "cancelled" in repr(future)
    added = desk.start("Desk.add", 1)
    added.result()
    assert "finished" in repr(added)


def test_a_handler_may_stop_its_own_server() -> None:
    @rrpc.service
    class Switch:
        @rrpc.method
        def off(self) -> None:
            ended.append(server.stop())

    ended: list[bool] = []
    server = rrpc.serve(Switch(), listen="tcp://127.0.0.1:0", workers=2)
    with rrpc.connect(server.addresses[0]) as client, pytest.raises(rrpc.Unavailable):
        client.call("Switch.off", timeout=20)
    assert server.wait(20)
    assert ended == [True]


def test_futures(desk: rrpc.Client) -> None:
    futures = [desk.start("Desk.add", n) for n in range(50)]
    assert [future.result(20) for future in reversed(futures)] == [n + 1.0 for n in reversed(range(50))]
    assert futures[0].result() == 1.0
    assert futures[0].done()
    assert not futures[0].running()
    assert futures[0].exception() is None
    failed = desk.start("Desk.fail", "missing")
    assert isinstance(failed.exception(20), rrpc.NotFound)
    with pytest.raises(rrpc.NotFound):
        failed.result()


def test_threads_that_wait_for_one_future_get_one_value(desk: rrpc.Client) -> None:
    for _ in range(20):
        future = desk.start("Desk.double", np.ones((200, 300), np.float32))
        results: list[Any] = []
        threads = [threading.Thread(target=lambda: results.append(future.result(20))) for _ in range(4)]  # noqa: B023
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == 4
        assert len({id(rows) for rows, _ in results}) == 1


def test_a_future_that_waits_can_be_cancelled(desk: rrpc.Client) -> None:
    future = desk.start("Desk.wait")
    with pytest.raises(TimeoutError) as caught:
        future.result(0.01)
    assert not isinstance(caught.value, rrpc.RpcError)
    assert future.running()
    called = threading.Event()
    future.add_done_callback(lambda done: called.set() if done is future else None)
    assert future.cancel()
    assert future.cancelled()
    assert called.wait(20)
    with pytest.raises(rrpc.Cancelled):
        future.result()
    assert not future.cancel()


def test_a_call_past_its_timeout(desk: rrpc.Client) -> None:
    with pytest.raises(rrpc.DeadlineExceeded):
        desk.call("Desk.wait", timeout=0.05)


def test_what_a_server_and_a_client_refuse() -> None:
    with pytest.raises(TypeError, match="pass an instance"):
        rrpc.Server(Desk)
    with pytest.raises(TypeError, match="int is no service"):
        rrpc.Server(5)
    with pytest.raises(TypeError, match="needs a service"):
        rrpc.Server()
    with pytest.raises(ValueError, match="two services are called Desk"):
        rrpc.Server(Desk(), Desk())
    with pytest.raises(TypeError, match="there is no option 'slot'"):
        rrpc.Server(Desk(), slot=1)
    with pytest.raises(TypeError, match="there is no option 'polls'"):
        rrpc.connect("tcp://127.0.0.1:1", polls="busy")
    with pytest.raises(
        TypeError,
        match=r"address must be a str such as rrpc://host:port, .* not NoneType",
    ):
        rrpc.connect(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="workers must be at least 1"):
        rrpc.Server(Desk(), workers=0)
