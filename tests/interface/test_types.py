"""Numbers of a size, arrays of a shape, dimensions with names: the checks, and over real calls."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, NewType

import numpy as np
import pytest
from lab import TRANSPORTS, address_to_listen_on
from numpy.typing import NDArray
from processes import HELPERS, ServeFactory
from shapes_service import Rows, Table, Weights

import rrpc
from rrpc import Shape, Sized
from rrpc._interface import Mismatch, Parameter, Plan, compile_check
from rrpc.types import f32, i8, i64, u8, u64

Cube = Annotated[NDArray[np.float32], Shape("n", 3, None)]
Floor = Annotated[NDArray[Any], Shape()]
ACCEPTED: list[tuple[Any, Any]] = [
    (i8, -128),
    (i8, 127),
    (i8, True),
    (u64, 2**64 - 1),
    (i64, -(2**63)),
    (u8 | None, None),
    (f32, 3.4028235e38),
    (f32, math.inf),
    (f32, -0.1),
    (Cube, np.zeros((7, 3, 2), np.float32)),
    (Floor, np.array(5)),
    (Annotated[NDArray[Any], "a note", Shape(2)], np.zeros(2)),
]


@pytest.mark.parametrize(("annotation", "value"), ACCEPTED)
def test_what_fits_is_left_as_it_is(annotation: Any, value: Any) -> None:
    assert compile_check(annotation)(value) is value


def test_numbers_are_converted_as_without_a_size() -> None:
    assert type(compile_check(i8)(np.int64(5))) is int
    assert type(compile_check(f32)(5)) is float
    assert math.isnan(compile_check(f32)(math.nan))


MISMATCHED: list[tuple[Any, Any, str]] = [
    (i8, 128, "expected i8, got int (128 is out of range, -128 to 127)"),
    (i8, np.int64(-129), "expected i8, got int64 (-129 is out of range, -128 to 127)"),
    (u8, -1, "expected u8, got int (-1 is out of range, 0 to 255)"),
    (u64, 2**64, f"expected u64, got int ({2**64} is out of range, 0 to {2**64 - 1})"),
    (i64, 2.0, "expected int, got float"),
    (i8, 10**5000, "expected i8, got int (a number of 16610 bits is out of range, -128 to 127)"),
    (f32, 3.5e38, "expected f32, got float (3.5e+38 is out of range, about -3.4e38 to 3.4e38)"),
    (f32, -(10**300), "expected f32, got int (-1e+300 is out of range, about -3.4e38 to 3.4e38)"),
    (list[i8], [1, 200], "[1]: expected i8, got int (200 is out of range, -128 to 127)"),
    (i8 | None, 200, "expected i8, got int (200 is out of range, -128 to 127)"),
    (i8 | str, 200, "expected i8 | str, got int"),
    (
        Cube,
        np.zeros((7, 4, 2), np.float32),
        "expected float32 array of shape (n, 3, _), got float32 array of shape (7, 4, 2) (dimension 1 is 4, not 3)",
    ),
    (
        Cube | None,
        np.zeros(7, np.float32),
        "expected float32 array of shape (n, 3, _), got float32 array of shape (7,) (it has 1 dimension)",
    ),
    (Cube, np.zeros((7, 3, 2)), "expected float32 array, got float64 array of shape (7, 3, 2) (use .astype"),
    (Floor, np.zeros((1, 1)), "expected array of shape (), got float64 array of shape (1, 1) (it has 2 dimensions)"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("annotation", "value", "message"), MISMATCHED, ids=[m[:40] for _, _, m in MISMATCHED]
)
def test_what_does_not_fit_is_refused(annotation: Any, value: Any, message: str) -> None:
    with pytest.raises(Mismatch) as caught:
        compile_check(annotation)(value)
    path = f"{caught.value.path}: " if caught.value.path else ""
    assert (path + str(caught.value)).startswith(message)


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (Annotated[str, Sized("i8")], "there is no str of size 'i8'"),
        (Annotated[int, Sized("i9")], "there is no int of size 'i9'"),
        (Annotated[int, Sized("f32")], "there is no int of size 'f32'"),
        (Annotated[list[int], Shape(3)], "rrpc.Shape is for arrays, not for list[int]"),
        (
            Annotated[NDArray[np.float32] | None, Shape(3)],
            "rrpc.Shape is for arrays, not for NDArray[float32] | None",
        ),
        (
            list[Annotated[NDArray[np.object_], Shape("n")]],
            "NDArray[object_] isn't supported: Python objects",
        ),
    ],
)
def test_notes_that_mean_nothing_are_refused(annotation: Any, message: str) -> None:
    with pytest.raises(rrpc.AnnotationError) as caught:
        compile_check(annotation)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("dims", [("a b",), (-1,), (True,), (2.0,)])
def test_shapes_that_mean_nothing_are_refused(dims: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="a dimension"):
        Shape(*dims)


def _floats(*shape: int) -> NDArray[np.float32]:
    return np.zeros(shape, np.float32)


class Hit(NamedTuple):
    ids: Weights
    distances: Weights


@dataclass
class Sample:
    points: Weights
    n: int = 2
    more: Weights = field(default_factory=lambda: _floats(2))
    inner: "list[Sample]" = field(default_factory=list)


Vector = NewType("Vector", Weights)
Count = NewType("Count", int)


def _clash(annotations: Mapping[str, Any], *values: Any) -> str:
    """What the plan says of these arguments, the same on both sides; empty if it takes them."""
    plan = Plan("S.m", [Parameter(name, annotation) for name, annotation in annotations.items()], None)
    untyped = Plan("S.m", [Parameter(name, Any) for name in annotations], None)
    here = _said(lambda: plan.encode_arguments(values))
    there = _said(lambda: plan.decode_arguments(untyped.encode_arguments(values)[0], None))
    assert here == there
    return here


def _said(act: Callable[[], object]) -> str:
    try:
        act()
    except rrpc.InvalidArgument as error:
        return str(error).removeprefix("S.m(): ")
    return ""


OWN = "argument 'a'.weights: dimension n is 5, in .rows it is 4"
CLASHES: list[tuple[dict[str, Any], tuple[Any, ...], str]] = [
    ({"a": Weights, "b": Weights}, (_floats(4), _floats(4)), ""),
    (
        {"a": Weights, "b": Weights},
        (_floats(4), _floats(5)),
        "argument 'b': dimension n is 5, in argument 'a' it is 4",
    ),
    (
        {"a": Annotated[NDArray[Any], Shape("n", "n")]},
        (_floats(4, 5),),
        "argument 'a': dimension n is 5, in argument 'a' it is 4",
    ),
    ({"a": Rows, "b": Rows}, (_floats(4, 2), _floats(4, 3)), "argument 'b': dimension d is 3, in argument 'a' it is 2"),
    ({"a": Weights, "n": int}, (_floats(4), 5), "argument 'a': dimension n is 4, argument 'n' says 5"),
    ({"a": Weights, "n": int}, (_floats(4), np.int64(4)), ""),
    ({"a": Weights, "n": Count | None}, (_floats(4), None), ""),
    ({"a": Weights, "n": i8 | None}, (_floats(4), 5), "argument 'a': dimension n is 4, argument 'n' says 5"),
    ({"a": Weights, "n": float}, (_floats(4), 5.0), ""),
    ({"a": Weights | None, "b": Weights}, (None, _floats(5)), ""),
    (
        {"a": str | Vector | Rows, "b": Weights},
        (_floats(4, 2), _floats(5)),
        "argument 'b': dimension n is 5, in argument 'a' it is 4",
    ),
    (
        {"a": list[Weights]},
        ([_floats(4), _floats(4), _floats(5)],),
        "argument 'a'[2]: dimension n is 5, in argument 'a'[0] it is 4",
    ),
    (
        {"a": tuple[int, Weights], "b": dict[str, tuple[Weights, ...]]},
        ((1, _floats(4)), {"x": (_floats(4), _floats(5))}),
        "argument 'b'['x'][1]: dimension n is 5, in argument 'a'[1] it is 4",
    ),
    # A class's names are each instance's own.
    ({"a": Weights, "b": Table}, (_floats(3), Table(_floats(4, 2), _floats(4))), ""),
    ({"a": list[Table]}, ([Table(_floats(4, 2)), Table(_floats(5, 2))],), ""),
    (
        {"a": list[Table]},
        ([Table(_floats(4, 2), _floats(5))],),
        "argument 'a'[0].weights: dimension n is 5, in .rows it is 4",
    ),
    ({"a": Table}, ({"rows": _floats(4, 2), "weights": _floats(5)},), OWN),
    ({"a": Table | None}, (Table(_floats(4, 2), _floats(5)),), OWN),
    ({"a": Sample}, (Sample(_floats(2), inner=[Sample(_floats(3), 3, _floats(3))]),), ""),
    ({"a": Sample}, ({"points": _floats(7)},), ""),  # defaults are the receiver's own
    (
        {"a": Sample},
        (Sample(_floats(2), inner=[Sample(_floats(3), 4, _floats(3))]),),
        "argument 'a'.inner[0].points: dimension n is 3, .n says 4",
    ),
    ({"a": Hit}, ((_floats(2), _floats(3)),), "argument 'a'.distances: dimension n is 3, in .ids it is 2"),
    ({"a": list[Hit]}, ([Hit(_floats(2), _floats(2)), Hit(_floats(3), _floats(3))],), ""),
]  # fmt: skip


@pytest.mark.parametrize(("annotations", "values", "message"), CLASHES)
def test_a_named_dimension_is_one_size(
    annotations: dict[str, Any], values: tuple[Any, ...], message: str
) -> None:
    assert _clash(annotations, *values) == message


def test_plans_without_named_dimensions_have_nothing_to_check() -> None:
    fixed = Annotated[NDArray[np.float32], Shape(3, None)]
    for annotation in (int, fixed, list[Table]):
        plan = Plan("S.m", [Parameter("n", annotation)], annotation)
        assert plan._dimensions is None
    plan = Plan("S.m", [Parameter("n", int)], Weights)
    assert plan.decode_arguments(plan.encode_arguments((5,))[0], None) == (
        [5],
        None,
        {"n": (5, "argument 'n'", True)},
    )


# --- over real calls ---------------------------------------------------------------------------------


class _Search(rrpc.UnaryMethod[Any]):
    rpc_name = "Shapes.search"

    def __call__(
        self,
        queries: Rows,
        weights: Weights | None = None,
        k: int = 2,
        *,
        timeout: float | None = None,
        out: Any = None,
    ) -> tuple[
        Annotated[NDArray[np.int64], Shape("n", "k")], Annotated[NDArray[np.float32], Shape("n", "k")]
    ]:
        result: tuple[NDArray[np.int64], NDArray[np.float32]] = self._call(
            (queries, weights, k), timeout, None, out
        )
        return result

    def start(self, queries: Rows, weights: Weights | None = None, k: int = 2) -> rrpc.Future[Any]:
        return self._start((queries, weights, k), None)


class ShapesClient(rrpc.Client):
    search = rrpc.stub(_Search)


def _calls_started() -> int:
    return rrpc.stats()["calls_started"]


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("shapes")
    factory = ServeFactory(folder, address_to_listen_on)
    text = (HELPERS / "shapes_service.py").read_text()
    served = factory(text, "Shapes", listen=TRANSPORTS, module="shapes_service")
    yield dict(zip(TRANSPORTS, served.addresses, strict=True))
    factory.close()


@pytest.fixture
def typed(addresses: dict[str, str], transport: str) -> Iterator[ShapesClient]:
    with ShapesClient(addresses[transport], timeout=20.0) as client:
        yield client


def _refused(kind: type[rrpc.RpcError], call: Callable[[], Any]) -> str:
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    return str(caught.value)


CLASH = "Shapes.search(): argument 'weights': dimension n is 5, in argument 'queries' it is 4"


def test_typed_calls_keep_to_the_shapes(typed: ShapesClient) -> None:
    for rows in (4, 3000):
        ids, distances = typed.search(_floats(rows, 8), _floats(rows), k=3)
        assert ids.shape == distances.shape == (rows, 3)
    before = _calls_started()
    assert _refused(rrpc.InvalidArgument, lambda: typed.search(_floats(4, 8), _floats(5))) == CLASH
    assert _refused(rrpc.InvalidArgument, lambda: typed.search.start(_floats(4, 8), _floats(5))) == CLASH
    assert _calls_started() == before  # heard before anything was sent
    assert typed.search.start(_floats(4, 8)).result()[0].shape == (4, 2)


def test_the_server_checks_what_it_gives_back(typed: ShapesClient) -> None:
    queries, liar = _floats(4, 8), np.full(4, -1, np.float32)
    message = (
        "Shapes.search(): the result[0] isn't as declared: dimension n is 5, in argument 'queries' it is 4"
    )
    assert _refused(rrpc.Internal, lambda: typed.search(queries, liar)) == message
    assert _refused(rrpc.Internal, lambda: typed.search.start(queries, liar).result()) == message
    out = np.zeros((5, 2), np.int64)
    assert _refused(rrpc.Internal, lambda: typed.search(queries, liar, out=out)) == message
    assert _refused(rrpc.Internal, lambda: typed.call("Shapes.search", queries, liar)) == message


def test_the_client_checks_the_result_again(typed: ShapesClient) -> None:
    class Other(rrpc.UnaryMethod[Any]):
        rpc_name = "Shapes.search"

        def __call__(
            self, queries: Rows, weights: Weights | None = None, k: int = 2
        ) -> tuple[Annotated[NDArray[np.int64], Shape("k", "n")], NDArray[np.float32]]:
            result: tuple[NDArray[np.int64], NDArray[np.float32]] = self._call((queries, weights, k), None)
            return result

        def start(self, queries: Rows) -> rrpc.Future[Any]:
            return self._start((queries, None, 2), None)

    message = "Shapes.search(): the result[0] isn't as declared: dimension k is 4, argument 'k' says 2"
    method = Other(typed)
    assert _refused(rrpc.Internal, lambda: method(_floats(4, 8))) == message
    assert _refused(rrpc.Internal, lambda: method.start(_floats(4, 8)).result()) == message


def test_untyped_calls_are_checked_by_the_server(typed: ShapesClient) -> None:
    call = typed.call
    assert call("Shapes.search", _floats(4, 8), k=3)[0].shape == (4, 3)
    assert _refused(rrpc.InvalidArgument, lambda: call("Shapes.search", _floats(4, 8), _floats(5))) == CLASH
    message = _refused(rrpc.InvalidArgument, lambda: call("Shapes.fixed", np.ones(4)))
    assert message == (
        "Shapes.fixed(): argument 'point': expected float64 array of shape (3,), "
        "got float64 array of shape (4,) (dimension 0 is 4, not 3)"
    )
    message = _refused(rrpc.Internal, lambda: call("Shapes.fixed", np.zeros(3)))
    assert "the result isn't as declared: expected float64 array of shape (3,), got" in message
    parts = {"x": (_floats(3), _floats(3)), "y": (_floats(4),)}
    message = _refused(rrpc.InvalidArgument, lambda: call("Shapes.joined", parts))
    assert (
        message
        == "Shapes.joined(): argument 'parts'['y'][0]: dimension n is 4, in argument 'parts'['x'][0] it is 3"
    )


def test_dimensions_of_structs_are_each_one_s_own_over_the_wire(typed: ShapesClient) -> None:
    good = [Table(_floats(4, 2), _floats(4)), Table(_floats(3, 2))]
    assert [len(table["rows"]) for table in typed.call("Shapes.tables", good, n=7)] == [4, 3]
    bad = [*good, Table(_floats(4, 2), _floats(5))]
    message = _refused(rrpc.InvalidArgument, lambda: typed.call("Shapes.tables", bad))
    assert message == "Shapes.tables(): argument 'tables'[2].weights: dimension n is 5, in .rows it is 4"


def test_numbers_out_of_range_are_refused_on_both_sides(typed: ShapesClient) -> None:
    assert typed.call("Shapes.small", 5) == 5
    message = _refused(rrpc.InvalidArgument, lambda: typed.call("Shapes.small", 128))
    assert (
        message
        == "Shapes.small(): argument 'number': expected i8, got int (128 is out of range, -128 to 127)"
    )
    message = _refused(rrpc.InvalidArgument, lambda: typed.call("Shapes.small", 1, other=1e39))
    assert "argument 'other': expected f32, got float (1e+39 is out of range" in message
    message = _refused(rrpc.Internal, lambda: typed.call("Shapes.small", -1))
    assert (
        message
        == "Shapes.small(): the result isn't as declared: expected u8, got int (-1 is out of range, 0 to 255)"
    )


def test_a_struct_of_a_newer_version_loses_what_is_unknown_here(typed: ShapesClient) -> None:
    @dataclass
    class Newer:
        rows: Rows
        color: str = "red"

    Newer.__name__ = "Table"
    (table,) = typed.call("Shapes.tables", [Newer(_floats(2, 2))])
    assert table.keys() == {"rows", "weights", "labels"}
    message = _refused(
        rrpc.InvalidArgument, lambda: typed.call("Shapes.tables", [{"rows": _floats(2, 2), "color": "red"}])
    )
    assert message.endswith("argument 'tables'[0]: expected Table, got dict (with unknown color)")
