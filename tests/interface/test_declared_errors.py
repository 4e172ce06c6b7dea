"""Errors that an interface declares: on the server, on the wire, and as the classes of a generated client."""

import asyncio
import copy
import dataclasses
import importlib
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import TRANSPORTS, LabServer, address_to_listen_on
from processes import ServeFactory, eventually, patience

import rrpc
from rrpc._interface import AnnotationError
from rrpc.cli.gen import main
from rrpc.schema import service_of

IDL = """
package lab;

struct Where { 1: line: i32; 2: column: i32 = 0; }

/// The table is still empty.
error NotTrained(failed_precondition) {
  1: missing: int;
  2: where: Where? = none;
}

error Gone(not_found);

service Desk {
  train(missing: int) -> int throws NotTrained, Gone [idempotent];
  lose() throws Gone;
  raise_it(what: string);
  watch(upto: int) -> stream int throws NotTrained;
  refuse(values: stream int) -> int throws NotTrained;
}
"""

SERVER = """
from collections.abc import Iterator

import rrpc
from desk_rpc import DeskBase, Gone, NotTrained, Where


@rrpc.error
class Newer(rrpc.Aborted):
    reason: str


class Desk(DeskBase):
    def train(self, missing: int) -> int:
        if missing == 0:
            raise Gone
        if missing == 1:
            raise Newer("of another version")
        if missing == 2:
            raise NotTrained("many")
        rrpc.context().set_metadata({"hint": "train"})
        raise NotTrained(missing, Where(3, 4))

    def lose(self) -> None:
        raise Gone

    def watch(self, upto: int) -> Iterator[int]:
        yield from range(upto)
        raise NotTrained(upto)

    def refuse(self, values: Iterator[int]) -> int:
        raise NotTrained(next(values))

    def raise_it(self, what: str) -> None:
        raise {"gone": Gone(), "untrained": NotTrained(9)}[what]
"""

OLDER = IDL.replace("1: missing: int;", "1: missing: int; 3: needed: string;")
OTHER_CODE = IDL.replace("NotTrained(failed_precondition)", "NotTrained(aborted)")


@rrpc.error
class NotTrained(rrpc.FailedPrecondition):
    """The table is still empty."""

    missing: int
    names: list[str] = dataclasses.field(default_factory=list)


@rrpc.error
class Spoken(rrpc.NotFound):
    row: int

    def __str__(self) -> str:
        return f"row {self.row} isn't there"


# The classes


def test_an_error_is_a_class_with_fields() -> None:
    error = NotTrained(3)
    assert (error.missing, error.names, error.code) == (3, [], rrpc.StatusCode.FAILED_PRECONDITION)
    assert error.details == {"missing": 3, "names": []}
    assert repr(error) == "NotTrained(missing=3, names=[])"
    assert error.message == str(error) == "The table is still empty (missing=3, names=[])"
    assert str(Spoken(row=7)) == Spoken(7).message == "row 7 isn't there"
    assert isinstance(error, rrpc.FailedPrecondition)
    assert error != NotTrained(3), "as other exceptions"
    with pytest.raises(TypeError, match="missing"):
        NotTrained()  # type: ignore[call-arg]


def test_errors_are_copied_and_pickled() -> None:
    error = NotTrained(3, names=["a"])
    error.message = "as told"
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is NotTrained
        assert vars(again) == vars(error)
        assert str(again) == "as told"


def test_what_can_t_be_an_error() -> None:
    with pytest.raises(TypeError, match=r"goes on a subclass of a status's class such as rrpc\.NotFound"):
        rrpc.error(ValueError)  # type: ignore[type-var]

    class Made(rrpc.NotFound):
        def __init__(self) -> None: ...

    with pytest.raises(TypeError, match=r"Made: @rrpc\.error makes __init__ of the fields"):
        rrpc.error(Made)

    class Taken(rrpc.NotFound):
        details: int  # type: ignore[assignment]

    with pytest.raises(TypeError, match="every error has 'details' itself"):
        rrpc.error(Taken)


@pytest.mark.parametrize(
    ("throws", "why"),
    [
        (rrpc.NotFound, "any method may fail with a status; declare an error of your own"),
        (ValueError, "throws ValueError: decorate it"),
        (7, "throws 7: decorate it"),
    ],
)
def test_what_a_method_can_t_declare(throws: Any, why: str) -> None:
    with pytest.raises(TypeError, match=why):

        @rrpc.service
        class Desk:
            @rrpc.method(throws=[throws])
            def go(self) -> None: ...


def test_an_error_is_no_type() -> None:
    with pytest.raises(AnnotationError, match="NotTrained is an error, which is raised and never passed"):

        @rrpc.service
        class Desk:
            @rrpc.method
            def go(self, error: NotTrained) -> None: ...


def test_a_python_service_has_its_errors_in_the_schema() -> None:
    @rrpc.service(name="lab.Desk")
    class Desk:
        @rrpc.method(throws=[NotTrained, Spoken], idempotent=True)
        def go(self) -> None: ...

    described = service_of(Desk)
    assert described.methods[0].errors == ("lab.NotTrained", "lab.Spoken")
    assert described.methods[0].idempotent
    assert described.declarations["lab.NotTrained"].doc == "The table is still empty."


# Over a connection, by name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With modules generated of each version of the interface."""
    path = tmp_path_factory.mktemp("declared")
    for name, text in (("desk_rpc", IDL), ("older", OLDER), ("other_code", OTHER_CODE)):
        (path / f"{name}.rrpc").write_text(text)
        assert main([str(path / f"{name}.rrpc"), "-o", str(path / f"{name}.py")]) == 0
    return path


@pytest.fixture(scope="module")
def desk_server(folder: Path) -> Iterator[LabServer]:
    factory = ServeFactory(folder, address_to_listen_on)
    yield LabServer(factory(SERVER, "Desk", listen=TRANSPORTS, module="desk_service"))
    factory.close()


@pytest.fixture
def module(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module


@pytest.fixture
def desk(module: Any, desk_server: LabServer, transport: str) -> Iterator[Any]:
    with module("desk_rpc").DeskClient(desk_server.address(transport), timeout=patience(30)) as client:
        yield client


def test_a_client_catches_its_own_class(module: Any, desk: Any) -> None:
    lab = module("desk_rpc")
    for call in (desk.train, lambda missing: desk.train.start(missing).result()):
        with pytest.raises(lab.NotTrained) as caught:
            call(5)
        error = caught.value
        assert type(error) is lab.NotTrained
        assert (error.missing, error.where) == (5, lab.Where(3, 4))
        assert error.message == "The table is still empty (missing=5, where=Where(line=3, column=4))"
        assert error.metadata == {"hint": "train"}
    with pytest.raises(lab.Gone, match="^Gone$"):  # noqa: RUF043
        desk.lose()
    assert isinstance(desk.train.start(0).exception(), lab.Gone)


def test_with_metadata_and_interceptors_too(module: Any, desk: Any) -> None:
    """Calls that leave the plain way."""
    lab = module("desk_rpc")
    with pytest.raises(lab.NotTrained):
        desk.train(5, metadata={"a": "b"})
    seen: list[BaseException] = []

    class Watch(rrpc.ClientInterceptor):
        def unary(self, call: Any) -> Any:
            try:
                return (yield call)
            except rrpc.RpcError as error:
                seen.append(error)
                raise

    with pytest.raises(lab.NotTrained):
        desk.with_options(interceptors=[Watch()]).train(5)
    assert [type(error) for error in seen] == [lab.NotTrained]


def test_at_the_end_of_a_stream(module: Any, desk: Any) -> None:
    items = iter(desk.watch(3))
    assert [next(items), next(items), next(items)] == [0, 1, 2]
    with pytest.raises(module("desk_rpc").NotTrained) as caught:
        next(items)
    assert caught.value.missing == 3


def test_where_the_next_item_is_sent(module: Any, desk_server: LabServer, transport: str) -> None:
    lab = module("desk_rpc")
    address = desk_server.address(transport)

    def blocking() -> None:
        with lab.DeskClient(address, timeout=patience(30)) as desk, desk.refuse.open() as values:
            values.send(3)
            eventually(values.done)
            values.send(4)

    async def in_loop() -> None:
        async with (
            lab.AsyncDeskClient(address, timeout=patience(30)) as desk,
            desk.refuse.open() as values,
        ):
            await values.send(3)
            while not values.done():
                await asyncio.sleep(0.001)
            await values.send(4)

    for use in (blocking, lambda: asyncio.run(in_loop())):
        with pytest.raises(lab.NotTrained) as caught:
            use()
        assert caught.value.missing == 3


def test_in_asyncio(module: Any, desk_server: LabServer, transport: str) -> None:
    lab = module("desk_rpc")

    async def use() -> None:
        async with lab.AsyncDeskClient(desk_server.address(transport), timeout=patience(30)) as desk:
            for arguments in ({}, {"metadata": {"a": "b"}}):
                with pytest.raises(lab.NotTrained) as caught:
                    await desk.train(5, **arguments)
                assert (caught.value.missing, caught.value.metadata) == (5, {"hint": "train"})

    asyncio.run(use())


def test_one_that_the_client_does_not_know(desk: Any) -> None:
    with pytest.raises(rrpc.Aborted) as caught:
        desk.train(1)
    assert type(caught.value) is rrpc.Aborted
    assert caught.value.details == {"reason": "of another version"}
    assert caught.value.message == "Newer (reason='of another version')"


def test_one_that_the_method_does_not_declare(desk: Any) -> None:
    with pytest.raises(rrpc.FailedPrecondition) as caught:
        desk.raise_it("untrained")
    assert type(caught.value) is rrpc.FailedPrecondition
    assert caught.value.details == {"missing": 9, "where": None}


def test_one_whose_fields_are_wrong(desk: Any) -> None:
    with pytest.raises(rrpc.Internal, match=r"the error NotTrained\.missing isn't as declared: expected int"):
        desk.train(2)


@pytest.mark.parametrize("version", ["older", "other_code"])
def test_one_that_has_changed(module: Any, desk_server: LabServer, transport: str, version: str) -> None:
    """Its client needs a field that doesn't come, or another code: it gets the class of the code."""
    with module(version).DeskClient(desk_server.address(transport), timeout=patience(30)) as client:
        with pytest.raises(rrpc.FailedPrecondition, match="The table is still empty") as caught:
            client.train(5)
        assert type(caught.value) is rrpc.FailedPrecondition
        assert caught.value.details["missing"] == 5


def test_calls_by_name(desk_server: LabServer, transport: str) -> None:
    with rrpc.connect(desk_server.address(transport), timeout=patience(30)) as client:
        with pytest.raises(rrpc.NotFound) as caught:
            client.call("lab.Desk.lose")
        assert (type(caught.value), caught.value.details) == (rrpc.NotFound, {})


def test_an_error_goes_on_through_the_handler_that_called(transport: str, address: str) -> None:
    """What a handler doesn't catch of its own calls reaches its caller as it was."""

    @rrpc.service
    class Inner:
        @rrpc.method(throws=[NotTrained])
        def train(self) -> None:
            raise NotTrained(3)

        @rrpc.method
        def odd(self) -> None:
            raise KeyError("swim")

    class Train(rrpc.UnaryMethod[None]):
        rpc_name = "Inner.train"
        rpc_errors = (NotTrained,)

        def __call__(self, *, timeout: float | None = None) -> None:
            self._call((), timeout)

    class InnerClient(rrpc.Client):
        train = rrpc.stub(Train)

    @rrpc.service
    class Outer:
        @rrpc.method
        def by_name(self, method: str) -> None:
            inner.call(method)

        @rrpc.method
        def stub(self) -> None:
            inner.train()

    with (
        rrpc.serve(Inner(), Outer(), listen=address) as server,
        InnerClient(server.addresses[0], timeout=patience(30)) as inner,
    ):
        for method, arguments in (("Outer.by_name", ["Inner.train"]), ("Outer.stub", [])):
            with pytest.raises(rrpc.FailedPrecondition, match="still empty") as caught:
                inner.call(method, *arguments)
            assert caught.value.details == {"missing": 3, "names": []}
            assert caught.value._declared == "NotTrained"
        with pytest.raises(rrpc.RemoteError, match="KeyError: 'swim'"):
            inner.call("Outer.by_name", "Inner.odd")
