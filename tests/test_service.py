"""What may be a service, how arguments and results are checked, and calls through a server in this process."""

import datetime
import enum
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NewType

import numpy as np
import pytest
from numpy.typing import NDArray

import rrpc
from rrpc.codec import decode
from rrpc.service import MISSING, Mismatch, Parameter, Plan, compile_check, interface_of, signature_text


class Colour(enum.Enum):
    RED = "red"
    GREEN = 2


@dataclass
class Point:
    x: float
    y: float = 0.0
    rows: NDArray[np.float32] | None = None
    inner: list["Point"] = field(default_factory=list)


@dataclass
class Other:
    x: float


class Hit(NamedTuple):
    number: int
    at: Point


UserId = NewType("UserId", int)


# Decoration


@rrpc.service
class Base:
    """The base."""

    @rrpc.method
    def ping(self) -> None:
        """Answer."""


@rrpc.service(name="demo.Sum")
class Adder(Base):
    """Adds.

    Quickly.
    """

    @rrpc.method
    def add(self, a: int, b: "float" = 1.5, *, c: int | None = None) -> float:
        return a + b + (c or 0)

    def helper(self) -> object:
        return None


def test_the_interface_is_the_signatures() -> None:
    interface = interface_of(Adder)
    assert interface is not None
    assert interface == interface_of(Adder())
    assert (interface.name, interface.doc) == ("demo.Sum", "Adds.\n\nQuickly.")
    assert list(interface.methods) == ["ping", "add"]
    add = interface.resolved().methods["add"]
    assert add.name == "demo.Sum.add"
    assert add.result is float
    assert add.parameters == (
        Parameter("a", int),
        Parameter("b", float, 1.5),
        Parameter("c", int | None, None, keyword_only=True),
    )
    assert signature_text(add) == "demo.Sum.add(a: int, b: float = 1.5, c: int | None = None) -> float"
    assert interface.methods["ping"].doc == "Answer."
    assert add.parameters[0].default is MISSING


def test_a_class_without_the_decorator_is_no_service() -> None:
    class Derived(Base):
        pass

    assert interface_of(Derived) is None
    assert interface_of(5) is None


def star(self: Any, *values: int) -> None: ...
def double_star(self: Any, **values: int) -> None: ...
def without_annotation(self: Any, a) -> None: ...  # type: ignore[no-untyped-def]
def without_result(self: Any, a: int): ...  # type: ignore[no-untyped-def]
def unsupported(self: Any, a: threading.Thread) -> None: ...
def objects(self: Any, a: NDArray[np.object_]) -> None: ...
def nested_unsupported(self: Any) -> "list[tuple[int, threading.Thread]]": ...  # type: ignore[empty-body]
def reserved(self: Any, timeout: float) -> None: ...
def no_self() -> None: ...
async def coroutine(self: Any) -> None: ...
def generator(self: Any) -> Iterator[int]:
    yield 1


nested_unsupported.__annotations__["return"] = list[tuple[int, threading.Thread]]

REFUSED: list[tuple[Any, str]] = [
    (star, "Bad.m(): *values isn't supported; name each parameter"),
    (double_star, "Bad.m(): **values isn't supported; name each parameter"),
    (without_annotation, "Bad.m(): parameter 'a' has no annotation"),
    (without_result, "Bad.m(): the result has no annotation; write -> None if there is none"),
    (unsupported, "Bad.m(): parameter 'a': Thread isn't supported"),
    (objects, "Bad.m(): parameter 'a': NDArray[object_] isn't supported: Python objects can't be sent"),
    (nested_unsupported, "Bad.m(): result: Thread isn't supported"),
    (reserved, "Bad.m(): parameter 'timeout': the name is taken by the caller's own timeout="),
    (no_self, "Bad.m(): the first parameter must be self"),
    (coroutine, "Bad.m(): async methods aren't supported yet; use def"),
    (generator, "Bad.m(): generator methods aren't supported yet; return a list"),
]


@pytest.mark.parametrize(("function", "message"), REFUSED, ids=[f.__name__ for f, _ in REFUSED])
def test_what_cannot_be_a_method_is_refused_by_name(function: Any, message: str) -> None:
    with pytest.raises(TypeError) as caught:
        rrpc.service(type("Bad", (), {"m": rrpc.method(function)}))
    assert str(caught.value) == message


def plain(self: Any) -> None: ...


@pytest.mark.parametrize(
    ("name", "member", "message"),
    [
        ("close", plain, "Bad.close(): a client has 'close' itself"),
        ("_hidden", plain, "Bad._hidden(): a client has '_hidden' itself"),
        ("m", staticmethod(plain), "Bad.m: @rrpc.method goes on plain methods, not on staticmethod"),
    ],
)
def test_names_and_kinds_that_a_client_cannot_have(name: str, member: Any, message: str) -> None:
    rrpc.method(plain)
    with pytest.raises(TypeError) as caught:
        rrpc.service(type("Bad", (), {name: member}))
    assert str(caught.value).startswith(message)


def test_other_misuse_of_the_decorators() -> None:
    with pytest.raises(TypeError, match="Empty has no method"):
        rrpc.service(type("Empty", (), {}))
    with pytest.raises(TypeError, match="goes on a class"):
        rrpc.service(plain)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="can't be called 'a b'"):
        rrpc.service(name="a b")(Base)
    with pytest.raises(TypeError, match="goes on plain methods, not on property"):
        rrpc.method(property(plain))  # type: ignore[type-var]


def test_an_annotation_that_means_nothing_is_named_when_the_server_is_made() -> None:
    @rrpc.service
    class Late:
        @rrpc.method
        def m(self, a: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(rrpc.AnnotationError, match=r"Late\.m\(\): .*'Nowhere' is not defined"):
        rrpc.Server(Late())


# Checks

f32 = np.zeros(2, np.float32)
ACCEPTED: list[tuple[Any, Any, Any]] = [
    (int, 5, 5),
    (int, np.int64(5), 5),
    (float, 5, 5.0),
    (float, np.float32(0.5), 0.5),
    (bool, np.bool_(True), True),
    (complex, 1, 1 + 0j),
    (str, np.str_("a"), "a"),
    (bytes, bytearray(b"a"), b"a"),
    (bytearray, b"a", bytearray(b"a")),
    (memoryview, b"a", memoryview(b"a")),
    (None, None, None),
    (Any, f32, f32),
    (int | None, None, None),
    (int | str, "a", "a"),
    (float | str, 5, 5.0),
    (list[float], [1, 2.5], [1.0, 2.5]),
    (tuple[int, ...], (1, 2), (1, 2)),
    (tuple[int, float], (1, 2), (1, 2.0)),
    (dict[str, list[int]], {"a": [1]}, {"a": [1]}),
    (set[int], {1}, {1}),
    (Literal["a", 2], 2, 2),
    (Colour, "red", Colour.RED),
    (Colour, Colour.GREEN, Colour.GREEN),
    (UserId, 7, 7),
    (Point, {"x": 1}, Point(1.0)),
    (list[Point], [{"x": 1.0, "inner": [{"x": 2.0}]}], [Point(1.0, inner=[Point(2.0)])]),
    (Hit, (1, {"x": 1.0}), Hit(1, Point(1.0))),
    (NDArray[np.float32], f32, f32),
    (NDArray[Any], f32, f32),
    (np.ndarray, f32, f32),
    (NDArray[np.floating[Any]], f32, f32),
    (NDArray[np.int64], np.zeros(2, np.longlong), np.zeros(2, np.int64)),
    (np.float32, 1, np.float32(1)),
    (datetime.date, datetime.date(2024, 1, 1), datetime.date(2024, 1, 1)),
]


@pytest.mark.parametrize(("annotation", "value", "expected"), ACCEPTED)
def test_values_are_accepted_and_converted(annotation: Any, value: Any, expected: Any) -> None:
    checked = compile_check(annotation)(value)
    assert type(checked) is type(expected)
    assert np.array_equal(checked, expected) if isinstance(expected, np.ndarray) else checked == expected


MISMATCHED: list[tuple[Any, Any, str]] = [
    (int, "a", "expected int, got str"),
    (int, 1.0, "expected int, got float"),
    (float, "1", "expected float, got str"),
    (float, 10**400, "expected float, got int (too large)"),
    (bool, 1, "expected bool, got int"),
    (str, b"a", "expected str, got bytes"),
    (bytes, "a", "expected bytes, got str (use .encode())"),
    (None, 0, "expected None, got int"),
    (int | None, "a", "expected int | None, got str"),
    (list[int], (1,), "expected list[int], got tuple"),
    (list[int], [1, "a"], "[1]: expected int, got str"),
    (tuple[int, str], (1,), "expected tuple[int, str] of 2 items, got tuple (it has 1)"),
    (tuple[int, str], [1, "a"], "expected tuple[int, str], got list (use tuple(...))"),
    (dict[str, list[int]], {"a": [1, None]}, "['a'][1]: expected int, got None"),
    (Literal["a", 2], 3, "expected one of 'a', 2, got int (it is 3)"),
    (Literal[1], True, "expected one of 1, got bool (it is True)"),
    (Colour, "blue", "expected Colour, got str (it is 'blue')"),
    (Point, {"y": 1.0}, "expected Point, got dict (without x)"),
    (Point, {"x": 1.0, "z": 1}, "expected Point, got dict (with unknown z)"),
    (Point, Other(1.0), "expected Point, got Other"),
    (
        Point,
        Point(1.0, rows=np.zeros(1)),  # type: ignore[arg-type]
        ".rows: expected float32 array, got float64 array of shape (1,)",
    ),
    (list[Point], [{"x": 1.0, "inner": [{"x": "a"}]}], "[0].inner[0].x: expected float, got str"),
    (NDArray[np.float32], [1.0], "expected float32 array, got list (use np.asarray(..., dtype=np.float32))"),
    (NDArray[np.float32], np.zeros((3, 4)), "float64 array of shape (3, 4) (use .astype(np.float32))"),
    (NDArray[np.floating[Any]], np.zeros(2, int), "expected floating array, got int64 array of shape (2,)"),
    (np.int8, 300, "expected int8, got int"),
]


@pytest.mark.parametrize(("annotation", "value", "message"), MISMATCHED)
def test_mismatches_say_what_and_where(annotation: Any, value: Any, message: str) -> None:
    with pytest.raises(Mismatch) as caught:
        compile_check(annotation)(value)
    path = f"{caught.value.path}: " if caught.value.path else ""
    assert message in path + str(caught.value)


def test_a_union_of_dataclasses_goes_by_name() -> None:
    plan = Plan("S.m", [Parameter("a", Point | Other)], None)
    for value in (Point(1.0), Other(2.0)):
        payload, _ = plan.encode_arguments((value,))
        assert plan.decode_arguments(payload, None)[0] == [value]


# Calls through a server in this process


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
        ([1.0], "must be a numpy array, not list"),
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
    assert "rrpc/server.py" not in error.remote_traceback


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
        assert DeskClient.shift is _Shift
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
    with pytest.raises(ValueError, match="workers must be at least 1"):
        rrpc.Server(Desk(), workers=0)


@pytest.mark.parametrize("payload", [b"\x05", b"\x81\xa1z\x01", b"\x81\xa1a\x01", b"\x82\xa1a\x90\xa1o\x01"])
def test_a_malformed_request_is_a_protocol_error(payload: bytes) -> None:
    plan = Plan("S.m", [], None)
    with pytest.raises(rrpc.ProtocolError, match="malformed request"):
        plan.decode_arguments(payload, None)


def test_a_plain_request_is_a_plain_list() -> None:
    plan = Plan("S.m", [Parameter("a", int), Parameter("b", bytes)], int)
    payload, buffers = plan.encode_arguments((2**80, b"x"))
    assert decode(payload) == [2**80, b"x"]
    assert not buffers
    assert plan.decode_arguments(payload, None) == ([2**80, b"x"], None)


# Arrays in registered memory


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f4", ">i8", "M8[s]", "S3", [("a", "u1"), ("b", "f8")]])
def test_empty_is_an_array_like_any_other(dtype: Any, order: Literal["C", "F"]) -> None:
    made, like = rrpc.empty((3, 4), dtype, order), np.empty((3, 4), dtype, order)
    assert (made.dtype, made.shape, made.strides) == (like.dtype, like.shape, like.strides)
    made[...] = np.zeros((), made.dtype)
    assert rrpc.zeros((3, 4), dtype, order).tobytes() == np.zeros((3, 4), dtype, order).tobytes()
    assert rrpc.empty(5).dtype == np.float64
    assert rrpc.empty((2, 0)).shape == (2, 0)
    assert rrpc.empty(()).shape == ()


def test_empty_refuses_what_numpy_refuses() -> None:
    with pytest.raises(ValueError, match="negative dimensions"):
        rrpc.empty((2, -1))
    with pytest.raises(ValueError, match="too big"):
        rrpc.empty((1 << 40, 1 << 40))
    with pytest.raises(TypeError, match="no fixed size"):
        rrpc.empty(3, object)
    with pytest.raises(TypeError):
        rrpc.empty(2.5)  # type: ignore[arg-type]
