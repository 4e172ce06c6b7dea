"""What may be a service, and what its interface is."""

import abc
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import rrpc
from rrpc._interface import MISSING, Parameter, signature_text
from rrpc._interface.decorators import interface_of


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


def test_a_class_without_the_decorator_is_the_service_it_inherits_from() -> None:
    class Derived(Adder):
        def add(self, a: int, b: float = 1.5, *, c: int | None = None) -> float:
            return -1.0

    class Mixed(threading.Thread, Derived):
        pass

    for cls in (Derived, Mixed):
        assert interface_of(cls) is interface_of(Adder)
    assert interface_of(threading.Thread) is None
    assert interface_of(5) is None

    @rrpc.service
    class Named(Derived):
        pass

    named = interface_of(Named)
    assert named is not None
    assert named.methods["add"].function is Derived.add
    assert (named.name, list(named.methods)) == ("Named", ["ping", "add"])


@rrpc.service
class Echo:
    @rrpc.method
    def echo(self, a: int) -> int:
        return a


def test_what_an_undecorated_class_cannot_inherit_is_refused() -> None:
    class Both(Adder, Echo):
        pass

    with pytest.raises(TypeError) as caught:
        interface_of(Both())
    message = "Both inherits from the services demo.Sum and Echo: decorate it with @rrpc.service"
    assert str(caught.value) == message

    class More(Echo):
        @rrpc.method
        def twice(self, a: int) -> int:
            return 2 * a

    with pytest.raises(
        TypeError, match=r"^More\.twice is marked with @rrpc\.method, but More isn't decorated"
    ):
        rrpc.Server(More())
    assert interface_of(rrpc.service(More)) is not None
    assert interface_of(rrpc.service(Both)) is not None


KEYWORD_ONLY = "keyword-only " if sys.version_info >= (3, 13) else ""


def fewer(self: Any) -> int: ...  # type: ignore[empty-body]
def other_name(self: Any, a: int, *, b: int) -> int: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (fewer, "Own.echo() doesn't take the arguments of Echo.echo(): too many positional arguments"),
        (
            other_name,
            f"Own.echo() doesn't take the arguments of Echo.echo(): missing a required {KEYWORD_ONLY}argument: 'b'",
        ),
        (None, "Own.echo() doesn't take the arguments of Echo.echo(): None is not a callable object"),
    ],
)
def test_what_cannot_stand_in_for_an_inherited_method_is_refused(function: Any, message: str) -> None:
    with pytest.raises(TypeError) as caught:
        interface_of(type("Own", (Echo,), {"echo": function}))
    assert str(caught.value).startswith(message)


@rrpc.service(name="demo.Shop")
class ShopBase(abc.ABC):
    @rrpc.method
    @abc.abstractmethod
    def price(self, item: str, *, count: int = 1) -> float:
        """What it costs."""

    @rrpc.method
    def open(self) -> bool:
        return True


class Shop(ShopBase):
    def price(self, item: str, *, count: int = 1) -> float:
        return count * 2.0


def test_an_implementation_of_an_abstract_service_is_served() -> None:
    with (
        rrpc.serve(Shop(), listen="tcp://127.0.0.1:0") as server,
        rrpc.connect(server.addresses[0], timeout=20.0) as client,
    ):
        assert client.call("demo.Shop.price", "pen", count=3) == 6.0
        assert client.call("demo.Shop.open") is True

    class Unfinished(ShopBase):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Unfinished()  # type: ignore[abstract]


LOCAL = " (it means something in its own process only; pass what the peer can make one of)"


def star(self: Any, *values: int) -> None: ...
def double_star(self: Any, **values: int) -> None: ...
def without_annotation(self: Any, a) -> None: ...  # type: ignore[no-untyped-def]
def without_result(self: Any, a: int): ...  # type: ignore[no-untyped-def]
def unsupported(self: Any, a: threading.Thread) -> None: ...
def objects(self: Any, a: NDArray[np.object_]) -> None: ...
def nested_unsupported(self: Any) -> "list[tuple[int, threading.Thread]]": ...  # type: ignore[empty-body]
def reserved(self: Any, timeout: float) -> None: ...
def no_self() -> None: ...
def generator(self: Any) -> list[int]:  # type: ignore[misc]
    yield 1


def not_alone(self: Any, rows: Iterator[int], to: str) -> None: ...
def not_there(self: Any, rows: Iterator[int] = iter(())) -> None: ...  # noqa: B008
def by_name(self: Any, *, rows: Iterator[int]) -> None: ...
def of_streams(self: Any) -> "list[Iterator[int]]": ...  # type: ignore[empty-body]
def of_what(self: Any) -> Iterable: ...  # type: ignore[type-arg,empty-body]
def of_threads(self: Any) -> Iterable[threading.Thread]: ...  # type: ignore[empty-body]


nested_unsupported.__annotations__["return"] = list[tuple[int, threading.Thread]]
of_streams.__annotations__["return"] = list[Iterator[int]]

REFUSED: list[tuple[Any, str]] = [
    (star, "Bad.m(): *values isn't supported; name each parameter"),
    (double_star, "Bad.m(): **values isn't supported; name each parameter"),
    (without_annotation, "Bad.m(): parameter 'a' has no annotation"),
    (without_result, "Bad.m(): the result has no annotation; write -> None if there is none"),
    (unsupported, "Bad.m(): parameter 'a': Thread isn't supported" + LOCAL),
    (objects, "Bad.m(): parameter 'a': NDArray[object_] isn't supported: Python objects can't be sent"),
    (nested_unsupported, "Bad.m(): result: Thread isn't supported" + LOCAL),
    (reserved, "Bad.m(): parameter 'timeout': the name is taken by the caller's own timeout="),
    (no_self, "Bad.m(): the first parameter must be self"),
    (generator, "Bad.m(): it yields, so that its result is a stream: write -> Iterator[...]"),
    (not_alone, "Bad.m(): parameter 'rows': a method that takes a stream takes nothing else"),
    (not_there, "Bad.m(): parameter 'rows': a stream has no default"),
    (by_name, "Bad.m(): parameter 'rows': a stream stands alone, without '*' and '/'"),
    (of_streams, "Bad.m(): result: Iterator[int] is a stream: it stands alone, not within another type"),
    (of_what, "Bad.m(): result: Iterable of what? Write Iterable[...]"),
    (of_threads, "Bad.m(): result: Thread isn't supported" + LOCAL),
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
        ("_hidden", plain, "Bad._hidden(): a method's name can't begin with an underscore"),
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
    with pytest.raises(TypeError, match=r"^plain: @rrpc.method goes on plain methods, not on property"):
        rrpc.method(property(plain))  # type: ignore[call-overload]
    for kind in (classmethod, staticmethod):
        with pytest.raises(
            TypeError, match=rf"^plain: @rrpc.method goes on plain methods, not on {kind.__name__}$"
        ):
            rrpc.method(kind(plain))  # type: ignore[type-var]


def test_an_annotation_that_means_nothing_is_named_when_the_server_is_made() -> None:
    @rrpc.service
    class Late:
        @rrpc.method
        def m(self, a: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(rrpc.AnnotationError, match=r"Late\.m\(\): .*'Nowhere' is not defined"):
        rrpc.Server(Late())


@dataclass
class Worker:
    runs: "threading.Thread"


@dataclass
class Team:
    lead: "Team | None"
    workers: list[Worker]


def test_what_stands_in_a_dataclass_is_named_when_the_server_is_made() -> None:
    @rrpc.service
    class Teams:
        @rrpc.method
        def m(self, a: dict[str, Team]) -> None: ...

    with pytest.raises(rrpc.AnnotationError) as caught:
        rrpc.Server(Teams())
    expected = "Teams.m(): parameter 'a': Team.workers: Worker.runs: Thread isn't supported" + LOCAL
    assert str(caught.value) == expected


def test_a_default_that_its_annotation_does_not_allow_is_named_when_the_server_is_made() -> None:
    @rrpc.service
    class Defaults:
        @rrpc.method
        def m(self, a: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

    with pytest.raises(rrpc.AnnotationError) as caught:
        rrpc.Server(Defaults())
    assert (
        str(caught.value)
        == "Defaults.m(): parameter 'a': its default: expected int, got None; write int | None"
    )
