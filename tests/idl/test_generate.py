"""rrpc-gen: exact text, a type checker's and a formatter's verdict, --check, and what it can't write."""

import asyncio
import enum
import inspect
import sys
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from processes import ROOT, run
from two_versions import generate

import rrpc
from rrpc._interface import AnnotationError
from rrpc._interface.decorators import interface_of
from rrpc.cli.common import tool_version
from rrpc.cli.gen import main
from rrpc.idl import Unit, emit
from rrpc.schema import service_of
from rrpc.schema.fingerprints import fingerprint

MODULE = '''
import array
import datetime
import enum
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import rrpc
from numpy.typing import NDArray


class Metric(enum.Enum):
    """How far."""

    EUCLID = "euclid"
    COSINE = 2


@dataclass(frozen=True)
class Options:
    """How to search."""

    metric: Metric = Metric.EUCLID
    limits: list[int] = field(default_factory=list)
    parent: "Options | None" = None


class Hit(NamedTuple):
    id: int
    row: NDArray[np.float32]


@rrpc.service
class Nearest:
    """Nearest neighbours.

    Over a table.
    """

    @rrpc.method
    def search(self, queries: NDArray[np.float32], k: int = 10) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Find "k" rows.

        Back\\\\slashes are kept.
        """
        return np.zeros((len(queries), k), np.int64), np.zeros((len(queries), k), np.float32)

    @rrpc.method
    def best(self, name: str, /, options: Options, *, mode: Literal["a", 2] = "a") -> Hit:
        return Hit(1, np.ones(3, np.float32))

    @rrpc.method
    def forget(self) -> None:
        """Forget everything."""

    @rrpc.method
    def misc(self, a: array.array, when: datetime.datetime | None = None, b: bytes = b"x") -> dict[str, Any]:
        return {"a": a}
'''

USE = """
from typing import assert_type

import numpy as np
import rrpc
from nearest_client import AsyncNearestClient, Hit, Metric, NearestClient, Options
from numpy.typing import NDArray

def use(client: NearestClient) -> None:
    ids, distances = client.search(np.zeros((2, 3), np.float32), k=3, timeout=1.0)
    assert_type(ids, NDArray[np.int64])
    assert_type(client.best("a", Options(Metric.COSINE)), Hit)
    assert_type(client.search.start(distances), rrpc.Future[tuple[NDArray[np.int64], NDArray[np.float32]]])
    client.search(distances, out=ids)
    client.forget()


async def use_async(client: AsyncNearestClient) -> None:
    ids, distances = await client.search(np.zeros((2, 3), np.float32), k=3, timeout=1.0)
    assert_type(ids, NDArray[np.int64])
    assert_type(await client.best("a", Options(Metric.COSINE)), Hit)
    future = client.search.start(distances)
    assert_type(future, rrpc.aio.Future[tuple[NDArray[np.int64], NDArray[np.float32]]])
    assert_type(await future, tuple[NDArray[np.int64], NDArray[np.float32]])
    async with client as same:
        await same.search(distances, out=ids)
    await client.forget()
"""


class Shade(enum.Enum):
    DARK = 1


@rrpc.service
class Small:
    @rrpc.method
    def paint(self, shade: Shade = Shade.DARK) -> NDArray[np.uint8]:
        """Paint it."""
        return np.zeros(1, np.uint8)

    @rrpc.method
    def stop(self) -> None: ...


def interface(cls: type) -> Any:
    found = interface_of(cls)
    assert found is not None
    return found


def text_of(*classes: type) -> str:
    return emit(Unit("here", [interface(cls) for cls in classes]), "0.1.0")


@pytest.fixture
def generated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with nearest.py and the client generated from it, current while the test runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "nearest.py").write_text(MODULE)
    assert main(["nearest:Nearest", "-o", "nearest_client.py"]) == 0
    yield tmp_path
    for name in ("nearest", "nearest_client"):
        sys.modules.pop(name, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        # Found through a path, rrpc would be checked with them, and without its own settings.
        "mypy --strict --follow-imports silent nearest_client.py use.py",
        "ruff check --isolated --select E,F,I,UP,B,RUF --line-length 110 nearest_client.py",
        "ruff format --isolated --check --line-length 88 nearest_client.py",
        "ruff format --isolated --check --line-length 110 nearest_client.py",
    ],
)
def test_type_checker_linter_and_formatter_pass(generated: Path, command: str) -> None:
    pytest.importorskip(command.split()[0])
    (generated / "use.py").write_text(USE)
    run("-m", *command.split(), cwd=generated, timeout=100, MYPYPATH=str(ROOT))


def test_the_asyncio_twin_calls_the_service(generated: Path) -> None:
    import nearest  # type: ignore[import-not-found]
    import nearest_client  # type: ignore[import-not-found]

    async def main(address: str) -> None:
        async with nearest_client.AsyncNearestClient(address, timeout=20.0) as client:
            ids, distances = await client.search(np.zeros((2, 3), np.float32), k=4)
            assert (ids.shape, distances.dtype) == ((2, 4), np.float32)
            out = np.ones((2, 10), np.int64)
            assert (await client.search(np.zeros((2, 3), np.float32), out=out))[0] is out
            assert not out.any()
            hits = await asyncio.gather(*(client.best("a", nearest_client.Options()) for _ in range(9)))
            assert {type(hit) for hit in hits} == {nearest_client.Hit}
            assert await client.forget.start() is None
            with pytest.raises(rrpc.InvalidArgument, match=r"argument 'mode': expected one of 'a', 2"):
                await client.best("a", nearest_client.Options(), mode="b")

    with rrpc.serve(nearest.Nearest(), listen="tcp://127.0.0.1:0") as server:
        asyncio.run(main(server.addresses[0]))


def test_the_client_calls_the_service(generated: Path) -> None:
    import nearest
    import nearest_client

    assert (
        nearest_client.__doc__
        == f"Client and server base of Nearest.\n\nGenerated by rrpc-gen {tool_version()} from nearest:Nearest: "
        f"do not edit.\nInterface Nearest: {fingerprint(service_of(nearest.Nearest))}\n"
    )
    search = nearest.Nearest.search
    assert nearest_client.NearestClient.search.__doc__.splitlines()[0] == 'Find "k" rows.'
    assert inspect.getdoc(nearest_client.NearestClient.search) == inspect.getdoc(search)
    with (
        rrpc.serve(nearest.Nearest(), listen="tcp://127.0.0.1:0") as server,
        nearest_client.NearestClient(server.addresses[0], timeout=20.0) as client,
    ):
        ids, distances = client.search(np.zeros((2, 3), np.float32), k=4)
        assert (ids.shape, distances.dtype) == ((2, 4), np.float32)
        out = np.ones((2, 10), np.int64)
        assert client.search(np.zeros((2, 3), np.float32), out=out)[0] is out
        assert not out.any()
        options = nearest_client.Options(nearest_client.Metric.COSINE, [1], nearest_client.Options())
        hit = client.best("a", options)
        assert type(hit) is nearest_client.Hit
        assert hit.row.tolist() == [1.0, 1.0, 1.0]
        assert client.forget() is None
        with pytest.raises(rrpc.InvalidArgument, match=r"argument 'mode': expected one of 'a', 2"):
            client.best("a", options, mode="b")


def test_check_tells_what_is_out_of_date(generated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check = ["nearest:Nearest", "--check", "-o", "nearest_client.py"]
    assert main(check) == 0
    client = generated / "nearest_client.py"
    client.write_text(client.read_text().replace("k: int = 10", "k: int = 11"))
    assert main(check) == 1
    captured = capsys.readouterr()
    assert "nearest_client.py is out of date" in captured.err
    assert "+        k: int = 10," in captured.out
    assert "k: int = 11" in client.read_text()
    client.unlink()
    assert main(check) == 1


def test_the_text_goes_to_stdout_without_a_file(generated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nearest:Nearest"]) == 0
    assert capsys.readouterr().out == (generated / "nearest_client.py").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nearest:Nowhere"], "module nearest has no Nowhere; it has Nearest"),
        (["nearest:Options"], "nearest:Options is no service: decorate the class with @rrpc.service"),
        (["nearest"], "'nearest' isn't of the form module:Service"),
        (["nowhere:Nearest"], "there is no module nowhere (looked in the current directory and sys.path)"),
        (["nearest:Nearest", "-o", "no/such.py"], "no/such.py: No such file or directory"),
        (["broken:Nearest"], "importing broken: ZeroDivisionError: division by zero ("),
        (["needy:Nearest"], "importing needy: ModuleNotFoundError: No module named 'nowhere_at_all' ("),
    ],
)
def test_bad_input_is_one_line(
    generated: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    (generated / "broken.py").write_text("x = 1\ny = 1 / 0\n")
    (generated / "needy.py").write_text("import nowhere_at_all\n")
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"rrpc-gen: {message}")
    assert captured.err.count("\n") == 1
    if "broken" in arguments[0]:
        assert captured.err.endswith("broken.py:2)\n")


@dataclass
class Odd:
    when: Any = field(default_factory=lambda: 5)


class Pair(NamedTuple):
    first: Any = Odd


def test_what_has_no_text_is_refused_by_name() -> None:
    @rrpc.service
    class Default:
        @rrpc.method
        def m(self, a: Any = Small) -> None: ...

    @rrpc.service
    class Factory:
        @rrpc.method
        def m(self, a: Odd) -> None: ...

    @rrpc.service
    class Tuple:
        @rrpc.method
        def m(self) -> Pair: ...  # type: ignore[empty-body]

    class Shade(enum.Enum):
        LIGHT = 1

    @rrpc.service
    class Twice:
        @rrpc.method
        def m(self, a: Any = Shade.LIGHT) -> None: ...

    for cls, message in (
        (Default, r"Default\.m\(\): parameter 'a': the default <class .* has no literal"),
        (Factory, r"Odd\.when: a default_factory other than list, dict or set can't be written"),
        (Tuple, r"Pair\.first: the default <class .* has no literal"),
    ):
        with pytest.raises(AnnotationError, match=message):
            text_of(cls)
    with pytest.raises(AnnotationError, match="two classes are called Shade"):
        text_of(Small, Twice)


LONG = rrpc.Shape(
    "samples_of_the_batch", "channels_of_the_camera", "rows_of_the_picture", "columns_of_the_picture"
)


@rrpc.service
class Pictures:
    @rrpc.method
    def newest(self) -> rrpc.Borrowed[Annotated[NDArray[np.float32], LONG]]:
        raise NotImplementedError


def test_an_annotation_with_a_name_of_its_own_stays_borrowed() -> None:
    hints = typing.get_type_hints(generate(Pictures)._Newest.__call__, include_extras=True)
    assert hints["return"] == rrpc.Borrowed[Annotated[NDArray[np.float32], LONG]]


Length = rrpc.Shape("samples")


@rrpc.service
class Long:
    @rrpc.method
    def ready(self, names: list[str] = ["a" * 60, "b" * 60]) -> bool:  # noqa: B006
        raise NotImplementedError

    @rrpc.method
    def either(
        self,
    ) -> (
        NDArray[np.float32] | dict[str, Annotated[NDArray[np.float64], Length]] | list[str] | tuple[int, ...]
    ):
        raise NotImplementedError


def test_what_is_long_has_a_line_for_each_item_and_an_annotation_a_name() -> None:
    text = text_of(Long)
    compile(text, "long_client.py", "exec")
    assert text.startswith("# fmt: off\n"), "formatters would write it in another way"
    assert f'_ReadyNamesDefault: list[str] = [\n    "{"a" * 60}",\n    "{"b" * 60}",\n]\n' in text
    assert "names: list[str] = _ReadyNamesDefault" in text
    alternatives = [
        "NDArray[np.float32]",
        'dict[str, Annotated[NDArray[np.float64], rrpc.Shape("samples")]]',
        "list[str]",
        "tuple[int, ...]",
    ]
    body = "\n    | ".join(alternatives)
    assert f"_EitherResult: TypeAlias = (\n    {body}\n)\n" in text
    assert "class _Either(rrpc.UnaryMethod[_EitherResult]):" in text
    assert generate(Long).LongClient.rpc_fingerprints
