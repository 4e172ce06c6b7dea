"""Classes of users as annotations: attrs, Pydantic, TypedDict, generic ones, aliases, paths."""

import dataclasses
import io
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

import attrs
import numpy as np
import pydantic
import pytest
from lab import address_to_listen_on
from numpy.typing import NDArray
from two_versions import generate
from typing_extensions import NotRequired, TypeAliasType

import rrpc
from rrpc._interface import AnnotationError, Mismatch, compile_check
from rrpc._interface.decorators import interface_of
from rrpc.codec import Record
from rrpc.idl.emit_python import Unit, emit
from rrpc.schema import Field, List, Opaque, Optional, Scalar, Struct, service_of, to_data

T = TypeVar("T")
U = TypeVar("U")


class Row(TypedDict):
    """A row."""

    name: str
    size: NotRequired[int]


class Wide(Row):
    data: NDArray[np.float32]


@attrs.define
class Point:
    x: int = attrs.field(validator=attrs.validators.ge(0))
    y: float = attrs.field(default=0.0, converter=float)
    _tags: list[str] = attrs.field(factory=list)


class Part(pydantic.BaseModel):
    weight: float = pydantic.Field(gt=0)


class User(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)

    name: str = pydantic.Field(min_length=2)
    age: int = 3
    parts: list[Part] = []
    data: NDArray[np.float32] | None = None
    home: str = pydantic.Field(default="here", alias="homeAddress")


class Admin(User):
    rights: list[str] = []


@dataclass
class Pair(Generic[T]):
    first: T
    second: list[T]


@dataclass
class Named(Pair[U], Generic[T, U]):
    name: T


class Both(NamedTuple):
    left: Pair[int]
    right: Pair[str]


Ids = TypeAliasType("Ids", list[int])
Two = TypeAliasType("Two", tuple[T, T], type_params=(T,))


@rrpc.service
class Office:
    @rrpc.method
    def row(self, row: Row) -> Row:
        return {**row, "more": 1}  # type: ignore[typeddict-unknown-key]

    @rrpc.method
    def point(self, point: Point) -> Point:
        assert type(point) is Point
        return point

    @rrpc.method
    def user(self, user: User) -> User:
        assert type(user) is User
        return user

    @rrpc.method
    def pair(self, pair: Pair[int]) -> Pair[NDArray[np.float32]]:
        return Pair(np.full(pair.first, 1, np.float32), [])

    @rrpc.method
    def ids(self, ids: Ids, two: Two[str]) -> Ids:
        return [*ids, len(two)]

    @rrpc.method
    def path(self, path: pathlib.Path | None = None) -> pathlib.Path:
        assert path is None or isinstance(path, pathlib.Path)
        return path or pathlib.Path("/none")

    @rrpc.method
    def points(self, points: dict[str, list[Point]]) -> list[Point | User]:
        return [*points["all"], User(name="last")]

    @rrpc.method
    def anything(self, value: Any) -> Any:
        return value


CLIENTS = generate(Office)


@pytest.fixture(params=["shm", "tcp"])
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    server = rrpc.serve(Office(), listen=address_to_listen_on(request.param))
    with server, CLIENTS.OfficeClient(server.addresses[0], timeout=20.0) as client:
        yield client


def refused(call: Any, *arguments: Any) -> str:
    with pytest.raises(rrpc.InvalidArgument) as caught:
        call(*arguments)
    return caught.value.message


def test_a_typed_dict_keeps_what_it_does_not_name(client: Any) -> None:
    assert client.row({"name": "a"}) == {"name": "a", "more": 1}
    assert client.row({"name": "a", "size": 2, "other": [3]}) == {
        "name": "a",
        "size": 2,
        "other": [3],
        "more": 1,
    }
    assert refused(client.row, {"size": 2}).endswith("expected Row, got dict (without name)")
    assert refused(client.row, {"name": "a", "size": "x"}).endswith("'row'.size: expected int, got str")
    assert refused(client.row, [1]).endswith("expected Row, got list")


def test_a_typed_dict_takes_the_dataclass_of_another_client() -> None:
    record = Record(name="a", size=None)
    record.type_name = "Row"
    assert compile_check(Row)(record) == {"name": "a"}
    assert compile_check(Wide)({"name": "a", "data": np.zeros(2, np.float32)}).keys() == {"name", "data"}


def test_attrs_classes_go_by_the_names_of_their_constructor(client: Any) -> None:
    assert client.point(CLIENTS.Point(3, tags=["a"])) == CLIENTS.Point(3, 0.0, ["a"])
    assert client.point({"x": 1}) == CLIENTS.Point(1, 0.0, [])
    assert "'x' must be >= 0" in refused(client.point, CLIENTS.Point(-1))
    assert client.anything(Point(1, 2, ["b"])) == {"x": 1, "y": 2.0, "tags": ["b"]}


def test_an_attrs_check_gives_the_same_instance() -> None:
    point = Point(1, 2, ["a"])
    check = compile_check(Point)
    assert check(point) is point
    assert check({"x": 1, "y": 2.0, "tags": ["a"]}) == point
    with pytest.raises(Mismatch, match="unknown _tags"):
        check({"x": 1, "_tags": []})


def test_pydantic_models_validate(client: Any) -> None:
    user = CLIENTS.User(
        name="abc", parts=[CLIENTS.Part(weight=2.5)], data=np.ones(50_000, np.float32), homeAddress="x"
    )
    back = client.user(user)
    assert type(back) is CLIENTS.User
    assert (back.name, back.age, back.parts, back.homeAddress) == ("abc", 3, user.parts, "x")
    assert np.array_equal(back.data, user.data)
    assert refused(client.user, CLIENTS.User(name="a")).endswith(
        "(name: String should have at least 2 characters)"
    )
    wrong = {"name": "a", "parts": [{"weight": 0}, {"weight": "x"}], "age": "y"}
    assert refused(client.user, wrong).startswith("Office.user(): argument 'user'")
    assert client.anything(User(name="abc"))["homeAddress"] == "here"


def test_what_a_model_refuses_is_told_in_one_line() -> None:
    with pytest.raises(Mismatch) as caught:
        compile_check(User)({"parts": [{"weight": 0}, {"weight": "x"}], "age": "y"})
    assert str(caught.value).startswith("expected User, got dict (name: Field required; ")
    assert str(caught.value).endswith("; and 1 more)")
    user = User(name="ab")
    assert compile_check(User)(user) is user
    assert type(compile_check(User)(Admin(name="ab", rights=["all"]))) is User


def test_generic_classes_have_their_arguments(client: Any) -> None:
    back = client.pair(CLIENTS.Pair(3, [1]))
    assert np.array_equal(back.first, np.ones(3, np.float32))
    assert refused(client.pair, CLIENTS.Pair("a", [1])).endswith("'pair'.first: expected int, got str")
    assert refused(client.pair, CLIENTS.Pair(1, ["a"])).endswith("'pair'.second[0]: expected int, got str")


def test_a_generic_base_has_the_arguments_that_its_class_gives_it() -> None:
    check = compile_check(Named[str, int])
    assert check({"first": 1, "second": [2], "name": "n"}) == Named(1, [2], "n")
    with pytest.raises(Mismatch, match="expected int, got str"):
        check({"first": "a", "second": [], "name": "n"})
    assert compile_check(Pair)({"first": "a", "second": [1, None]}) == Pair[Any]("a", [1, None])
    with pytest.raises(Mismatch, match="expected str, got int"):
        compile_check(Both)((Pair(1, [1]), Pair(2, [3])))


def test_aliases_are_what_they_stand_for(client: Any) -> None:
    assert client.ids([1, 2], ("a", "b")) == [1, 2, 2]
    assert refused(client.ids, [1], ("a", 2)).endswith("'two'[1]: expected str, got int")
    sent = service_of(Office).methods[4].parameters[0].type
    assert sent == List(Scalar("int"))


def test_an_alias_may_name_itself() -> None:
    class TypeAliasType:
        """As Python 3.12 makes it of ``type Json = ...``: the value is looked up when it's asked for."""

        __type_params__ = ()

        @property
        def __value__(self) -> Any:
            return int | str | list[json] | dict[str, json]

    json: Any = TypeAliasType()
    check = compile_check(json)
    assert check({"a": [1, {"b": "c"}]}) == {"a": [1, {"b": "c"}]}
    with pytest.raises(Mismatch):
        check({"a": [1.5]})


if sys.version_info >= (3, 12):

    def test_the_statement_type() -> None:
        names: dict[str, Any] = {}
        exec("type Json = int | str | list[Json] | dict[str, Json]\ntype Ids[T] = list[T]", names)
        check = compile_check(names["Json"])
        assert check({"a": [1, {"b": "c"}]}) == {"a": [1, {"b": "c"}]}
        with pytest.raises(Mismatch):
            check({"a": [1.5]})
        assert compile_check(names["Ids"][int])([1]) == [1]


def test_paths_travel_as_text(client: Any) -> None:
    assert client.path(pathlib.Path("/a/b")) == pathlib.Path("/a/b")
    assert client.path("c") == pathlib.Path("c")
    assert client.path() == pathlib.Path("/none")
    assert client.anything(pathlib.PurePosixPath("/a")) == "/a"
    assert refused(client.path, b"/a").endswith("(use .decode())")
    assert service_of(Office).methods[5].result == Scalar("string")


def test_classes_within_others(client: Any) -> None:
    found = client.points({"all": [CLIENTS.Point(1), CLIENTS.Point(2)]})
    assert found == [CLIENTS.Point(1, 0.0, []), CLIENTS.Point(2, 0.0, []), CLIENTS.User(name="last")]
    assert refused(client.points, {"all": [{"x": "a"}]}).endswith(
        "'points'['all'][0].x: expected int, got str"
    )


def test_an_instance_of_another_class_of_that_name(client: Any) -> None:
    text = refused(client.point, Point(1))
    assert text.endswith(
        f"expected Point, got Point (its class is {__name__}.Point, not {CLIENTS.__name__}.Point)"
    )


def test_the_schema_has_their_fields() -> None:
    declared = service_of(Office).declarations
    assert declared["Row"] == Struct(
        "Row", (Field(1, "name", Scalar("string")), Field(2, "size", Optional(Scalar("int")), None))
    )
    assert [field.name for field in declared["Point"].fields] == ["x", "y", "tags"]  # type: ignore[union-attr]
    assert [field.name for field in declared["User"].fields][-1] == "homeAddress"  # type: ignore[union-attr]
    assert service_of(Office).methods[3].result == Opaque("Pair[NDArray[float32]]")
    assert to_data(service_of(Office))


def test_the_generated_client_needs_neither_package(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("mypy")
    interface = interface_of(Office)
    assert interface is not None
    text = emit(Unit("a test", [interface]), "0.1.0")
    assert "attrs" not in text
    assert "pydantic" not in text
    (tmp_path / "office.py").write_text(text)
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "office.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert dataclasses.is_dataclass(CLIENTS.Point)
    assert CLIENTS.Row.__required_keys__ == {"name"}


def test_rrpc_alone_imports_neither() -> None:
    code = (
        "import rrpc, sys; print([n for n in ('attrs', 'attr', 'pydantic', 'ml_dtypes') if n in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )


class Frame:
    __module__, __qualname__ = "polars", "DataFrame"


class Parameter:
    __module__, __qualname__ = "torch.nn.parameter", "Parameter"


@pytest.mark.parametrize(
    ("annotation", "way"),
    [
        (Frame, "declare pyarrow.Table, which takes it"),
        (Parameter, "declare torch.Tensor, and send .detach()"),
        (range, "send (start, stop, step)"),
        (io.TextIOWrapper, "Iterator[bytes]"),
        (type, "send its name"),
    ],
    ids=["frame", "parameter", "range", "file", "type"],
)
def test_what_is_not_supported_names_the_way(annotation: Any, way: str) -> None:
    with pytest.raises(AnnotationError) as caught:
        compile_check(list[annotation])
    assert way in str(caught.value)


def test_a_value_that_can_not_be_sent_names_the_way(client: Any) -> None:
    assert "(send (start, stop, step), or a list)" in refused(client.anything, range(3))
    assert "(declare pyarrow.Table, which takes it)" in refused(client.anything, [Frame()])
