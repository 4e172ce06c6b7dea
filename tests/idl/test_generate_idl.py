"""From .rrpc files to Python: exact text, checkers' verdicts, and servers that implement the generated bases."""

import datetime
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import ROOT, ServeFactory, run

import rrpc
from rrpc.cli.gen import main
from rrpc.idl import PythonFiles, load
from rrpc.schema import service_of
from rrpc.schema.fingerprints import fingerprint

GOLDEN = Path(__file__).parent / "golden"
NAME = "lab.search.Nearest"

SERVER = """
import numpy as np
import rrpc

from lab_rpc.common import Stamp
from lab_rpc.nearest import Metric, NearestBase, Row, Selector


class Table(NearestBase):
    def __init__(self, name: str = "table") -> None:
        self.name = name

    def search(self, queries, k=10, *, metric=Metric.L2):
        ids = np.arange(len(queries) * k, dtype=np.int64).reshape(len(queries), k)
        return ids, np.full((len(queries), k), metric.value, np.float32)

    def pick(self, which: Selector, names: list[str]) -> Selector | None:
        return None if which == "none" else which

    def list(self, stamp: Stamp) -> list[Row]:
        return [Row(1, np.ones(64, np.float32), stamp=stamp, parts=["all", [1, 2]])]

    def halve(self, rows):
        return rows[: len(rows) // 2]

    def old(self) -> None:
        raise rrpc.FailedPrecondition(f"{self.name} is new")

    def watch(self, name):
        for i in range(2):
            yield Row(i, np.ones(64, np.float32), name)

    def add(self, rows):
        return sum(row.id for row in rows)

    def mirror(self, rows):
        for row in rows:
            yield row
            yield None
"""
ASYNC_SERVER = """
import asyncio
from collections.abc import AsyncIterator

import numpy as np
import rrpc
from lab_rpc.common import Stamp
from lab_rpc.nearest import AsyncNearestBase, Metric, Row, Selector
from numpy.typing import NDArray

Queries = NDArray[np.float32]
Found = tuple[NDArray[np.int64], NDArray[np.float32]]


class Table(AsyncNearestBase):
    async def search(self, queries: Queries, k: int = 10, *, metric: Metric = Metric.L2) -> Found:
        await asyncio.sleep(0)
        ids = np.arange(len(queries) * k, dtype=np.int64).reshape(len(queries), k)
        return ids, np.full((len(queries), k), metric.value, np.float32)

    async def pick(self, which: Selector, /, names: list[str] = ["a"]) -> Selector | None:
        return None if which == "none" else which

    async def list(self, stamp: Stamp) -> list[Row]:
        return [Row(1, np.ones(64, np.float32), stamp=stamp, parts=["all", [1, 2]])]

    async def halve(self, rows: Queries) -> Queries:
        return rows[: len(rows) // 2]

    def old(self) -> None:  # type: ignore[override]
        raise rrpc.FailedPrecondition("it is new")

    async def watch(self, name: str) -> AsyncIterator[Row]:
        for i in range(2):
            await asyncio.sleep(0)
            yield Row(i, np.ones(64, np.float32), name)

    async def add(self, rows: AsyncIterator[Row]) -> int:
        return sum([row.id async for row in rows])

    def mirror(self, rows: AsyncIterator[Row]) -> AsyncIterator[Row | None]:
        return self._mirrored(rows)

    async def _mirrored(self, rows: AsyncIterator[Row]) -> AsyncIterator[Row | None]:
        async for row in rows:
            yield row
            yield None
"""

USE = """
from collections.abc import Iterator
from typing import assert_type

import numpy as np
import rrpc
from lab_rpc.common import Stamp
from lab_rpc.nearest import MAX_K, Metric, NearestBase, NearestClient, NotTrained, Row, Selector
from numpy.typing import NDArray


def use(client: NearestClient, stamp: Stamp) -> None:
    ids, distances = client.search(np.zeros((2, 3), np.float32), MAX_K, metric=Metric.L2, timeout=1.0)
    assert_type(ids, NDArray[np.int64])
    assert_type(client.list(stamp), list[Row])
    picked: Selector | None = client.pick("all", names=["b"])
    future: rrpc.Future[NDArray[np.float32]] = client.halve.start(distances)
    row = next(client.watch("it", timeout=1.0))
    assert_type(row, Row)
    assert_type(client.add([row]), int)
    with client.add.open() as rows:
        rows.send(row)
        assert_type(rows.finish(), int)
    with client.mirror.open() as mirrored:
        mirrored.send(row)
        mirrored.finish()
        assert_type(next(mirrored), Row | None)
    print(picked, future, list(client.mirror([row])))
    try:
        client.search(distances)
    except NotTrained as error:
        assert_type(error.missing, int)
        assert_type(error.message, str)


class Flowing(NearestBase):
    def watch(self, name: str) -> Iterator[Row]:
        yield from []

    def add(self, rows: Iterator[Row]) -> int:
        return sum(row.id for row in rows)


class Half(NearestBase):
    def old(self) -> None:
        self.rpc_fingerprints["lab.search.Nearest"]
        raise NotTrained(missing=3)
"""


TWO_ROWS = """package other;
import "nearest.rrpc";
struct Row { 1: width: int; }
service Rows { put(row: Row) throws NotTrained; }
service Others { put(row: lab.search.Row) -> Mark throws lab.search.NotTrained; }
error NotTrained(aborted);
struct Mark { 1: row: lab.search.Row; }
"""


HIDING = """
enum Shade { real = 3; to_bytes = 4; DARK = 5; }
enum Word { title = "a"; upper = "b"; }
struct S {
  1: list: int = 3;
  2: tags: list<string> = [];
  3: Shade: Shade = real;
  4: other: Shade = DARK;
  5: field: string = "a";
  6: more: list<int> = [1];
  7: int: int = 3;
  8: np: array<f32>[3]? = none;
  9: array: array<f32>[3]? = none;
  10: word: Word = title;
}
error Oops(internal) { 1: int: int; 2: list: list<int> = []; 3: field: string = "a"; }
error Np(internal) { 1: missing: int = 3; 2: needed: int; }
service Hides {
  Oops(s: S) throws Oops;
  list(int: int, str: string, shade: Shade = real) -> list<string> throws Oops, Np;
  np(s: S) -> array<f32>;
  int(s: S) -> S;
  Shade(shade: Shade = DARK) -> Shade;
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the package lab_rpc, generated."""
    path = tmp_path_factory.mktemp("generated")
    inputs = [GOLDEN / "nearest.rrpc", path / "other.rrpc", path / "hiding.rrpc"]
    inputs[1].write_text(TWO_ROWS)
    inputs[2].write_text(HIDING)
    assert main([*map(str, inputs), "-I", str(GOLDEN), "-o", str(path / "lab_rpc")]) == 0
    (path / "use.py").write_text(USE)
    (path / "table.py").write_text(ASYNC_SERVER)
    return path


@pytest.fixture
def generated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of nearest.rrpc."""
    monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module("lab_rpc.nearest")
    for name in [name for name in sys.modules if name.partition(".")[0] == "lab_rpc"]:
        del sys.modules[name]


def test_the_exact_text() -> None:
    files = PythonFiles("0.1.0")
    files.add_module(load(GOLDEN / "nearest.rrpc"), "nearest.rrpc")
    text = files.single()
    golden = GOLDEN / "nearest_rpc.py.txt"
    if os.environ.get("RRPC_GOLDEN_WRITE"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_a_package_has_a_module_for_each_file(folder: Path) -> None:
    assert sorted(path.name for path in (folder / "lab_rpc").iterdir() if path.is_file()) == [
        "__init__.py",
        "common.py",
        "hiding.py",
        "nearest.py",
        "other.py",
        "py.typed",
    ]
    assert "from .nearest import Row as NearestRow\n" in (folder / "lab_rpc" / "other.py").read_text()
    assert "from .common import Stamp\n" in (folder / "lab_rpc" / "nearest.py").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        # Found through a path, rrpc would be checked with them, and without its own settings.
        "mypy --strict --follow-imports silent -p lab_rpc -m use -m table",
        "pyright lab_rpc use.py table.py",
        "ruff check --isolated --target-version py310 --select E,F,I,UP,B,RUF --line-length 110 lab_rpc",
        "ruff format --isolated --check --line-length 88 lab_rpc",
        "ruff format --isolated --check --line-length 110 lab_rpc",
    ],
)
def test_checkers_pass(folder: Path, command: str) -> None:
    pytest.importorskip(command.split()[0])
    run("-m", *command.split(), cwd=folder, timeout=150, MYPYPATH=str(ROOT))


def test_clients_and_bases_have_the_interface_of_the_file(generated: Any) -> None:
    schema = load(GOLDEN / "nearest.rrpc").services[NAME]
    for name in ("NearestBase", "AsyncNearestBase", "NearestClient", "AsyncNearestClient"):
        assert getattr(generated, name).rpc_fingerprints == {NAME: fingerprint(schema)}
    back = service_of(generated.NearestBase)
    assert fingerprint(back) == fingerprint(schema)
    assert service_of(generated.AsyncNearestBase) == back
    methods = {method.name: method for method in back.methods}
    search = next(method for method in schema.methods if method.name == "search")
    assert (methods["search"].parameters, methods["search"].result) == (search.parameters, search.result)
    assert methods["search"].idempotent
    assert methods["watch"].result_stream
    assert methods["old"].deprecated == "use list"
    row = {field.name: field.number for field in back.declarations["lab.search.Row"].fields}  # type: ignore[union-attr]
    assert row["parts"] == 8
    assert back.declarations["lab.search.Row"].reserved == (6, "weight")  # type: ignore[union-attr]


@pytest.fixture
def client(folder: Path, generated: Any, serve: ServeFactory) -> Iterator[Any]:
    """Of a server in its own process that derives from the base."""
    environment = {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    server = serve(SERVER, "Table", listen="tcp", args=["--arg", "name=it"], env=environment)
    with generated.NearestClient(server.address, timeout=20.0) as connected:
        yield connected


def check_answers(generated: Any, client: Any) -> None:
    ids, distances = client.search(np.zeros((3, 5), np.float32), k=2, metric=generated.Metric.COSINE)
    assert ids.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert distances.tolist() == [[2.0, 2.0]] * 3
    assert client.search(np.zeros((1, 5), np.float32))[0].shape == (1, 10)
    common = sys.modules["lab_rpc.common"]
    stamp = common.Stamp(datetime.datetime(2026, 1, 2, 3))
    (row,) = client.list(stamp)
    assert (type(row), row.stamp, row.parts) == (generated.Row, stamp, ["all", [1, 2]])
    assert client.pick(row).vector.tolist() == row.vector.tolist()
    assert client.pick("none") is None
    with pytest.raises(rrpc.FailedPrecondition, match="it is new"):
        client.old()


def check_streams(client: Any) -> None:
    rows = list(client.watch("it"))
    assert [(row.id, row.label) for row in rows] == [(0, "it"), (1, "it")]
    assert client.add(rows) == 1
    assert [row and row.id for row in client.mirror(rows)] == [0, None, 1, None]


def test_a_server_of_the_base_answers_the_client(generated: Any, client: Any) -> None:
    check_answers(generated, client)


def test_dimensions_are_checked_on_both_sides(generated: Any, client: Any) -> None:
    with pytest.raises(rrpc.InvalidArgument, match=r"pick\(\): argument 'which'.*vector"):
        client.pick(generated.Row(1, np.zeros(63, np.float32)))
    with pytest.raises(rrpc.Internal, match=r"halve\(\): the result.*'?n'?"):
        client.halve(np.zeros((4, 2), np.float32))


def test_streams(generated: Any, client: Any) -> None:
    check_streams(client)
    with pytest.raises(rrpc.InvalidArgument, match=r"Nearest\.watch\(\): argument 'name'"):
        client.watch(3)


def test_a_server_of_the_asyncio_base_answers_the_same(
    folder: Path, generated: Any, serve: ServeFactory
) -> None:
    environment = {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    server = serve(ASYNC_SERVER, "Table", listen=["shm", "tcp"], env=environment)
    for address in server.addresses:
        with generated.NearestClient(address, timeout=20.0) as client:
            check_answers(generated, client)
            check_streams(client)


@pytest.mark.parametrize("base", ["NearestBase", "AsyncNearestBase"])
def test_a_base_can_not_be_served_itself(generated: Any, base: str) -> None:
    with pytest.raises(TypeError, match="abstract"):
        getattr(generated, base)()


def test_names_that_hide_what_the_text_uses(generated: Any) -> None:
    hiding: Any = importlib.import_module("lab_rpc.hiding")
    made = hiding.S()
    assert (made.tags, made.other, made.more, made.word) == ([], hiding.Shade.DARK, [1], hiding.Word.title)
    for base in (hiding.HidesBase, hiding.AsyncHidesBase):
        assert fingerprint(service_of(base)) == base.rpc_fingerprints["Hides"]
