"""Interface of a service as data: its methods, their parameters, annotations and documentation."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from rrpc.errors import RpcError

from .aliases import expanded
from .borrowed import check_placement
from .checks import compile_check, verify
from .declared_errors import is_declared
from .mismatch import AnnotationError, Mismatch, type_text
from .parameter import MISSING, Parameter
from .stream_annotations import check_streams, item_of, kind_of

__all__ = ["MISSING", "Interface", "Method", "Parameter", "check_override", "describe_method", "streams_as"]

RESERVED_PARAMETERS = frozenset({"timeout", "out"})
# What clients have themselves, and what the text of generated classes names.
RESERVED_METHODS = frozenset({"address", "call", "close", "info", "start", "stats", "with_options"})
RESERVED_METHODS |= {"abc", "rpc_fingerprints", "rrpc"}


@dataclass(frozen=True)
class Method:
    """A method of a service; ``name`` is qualified: ``Nearest.search``."""

    name: str
    doc: str
    parameters: tuple[Parameter, ...]
    result: Any
    function: Callable[..., Any] = field(compare=False, repr=False)
    idempotent: bool = False
    errors: tuple[type[RpcError], ...] = ()
    """Errors that the method declares, classes that ``error`` made."""
    stream_parameter: str | None = None
    """The parameter for which the handler gets a server stream, once resolved."""

    @property
    def kind(self) -> int:
        """Streams of a resolved method: ``streams.SENDS``, ``streams.RECEIVES``, both or 0."""
        return kind_of(self.parameters, self.result)

    def resolved(self) -> Method:
        """The same with every annotation an object; ``AnnotationError`` names the one that isn't."""
        hints = self._hints()
        by_hand = _server_stream(self, hints)
        if by_hand is not None:
            return by_hand.resolved()
        parameters = []
        for parameter in self.parameters:
            annotation = hints[parameter.name]
            _must(_compile_item, f"{self.name}(): parameter {parameter.name!r}", annotation)
            parameters.append(replace(parameter, annotation=annotation))
        _must(_compile_item, f"{self.name}(): result", hints["return"])
        check_streams(self.name, parameters, hints["return"], self.function)
        return replace(self, parameters=tuple(parameters), result=hints["return"])

    def _hints(self) -> dict[str, Any]:
        """Resolves the annotations that the method has here: its function's own may be a stub's."""
        declared = {parameter.name: parameter.annotation for parameter in self.parameters}
        holder = types.SimpleNamespace(__annotations__=declared | {"return": self.result})
        # The module of the function itself, whatever decorators are around it, says what names in annotations mean.
        names = inspect.unwrap(self.function).__globals__
        try:
            hints = typing.get_type_hints(holder, names, include_extras=True)
            return {name: expanded(hint) for name, hint in hints.items()}
        except (NameError, AttributeError, SyntaxError, TypeError) as error:
            raise AnnotationError(f"{self.name}(): an annotation can't be resolved: {error}") from None

    def verify(self) -> None:
        """Checks dataclasses that refer to each other, and defaults, which the decorator can't check yet.

        Raises AnnotationError if one is wrong.
        """
        for parameter in self.parameters:
            what = f"{self.name}(): parameter {parameter.name!r}"
            _must(_verify_item, what, parameter.annotation)
            if parameter.default is not MISSING:
                try:
                    compile_check(parameter.annotation)(parameter.default)
                except Mismatch as mismatch:
                    hint = (
                        f"; write {type_text(parameter.annotation)} | None"
                        if parameter.default is None
                        else ""
                    )
                    raise AnnotationError(f"{what}: its default{mismatch.path}: {mismatch}{hint}") from None
        _must(_verify_item, f"{self.name}(): result", self.result)
        for error in self.errors:
            _must(verify, f"{self.name}()", error)


@dataclass(frozen=True)
class Interface:
    """A service: its name, documentation and methods by their short names."""

    name: str
    doc: str
    methods: dict[str, Method]

    def resolved(self) -> Interface:
        """The same with every annotation an object."""
        methods = {name: method.resolved() for name, method in self.methods.items()}
        for method in methods.values():
            method.verify()
        return replace(self, methods=methods)


def _compile_item(annotation: Any) -> None:
    item, _ = item_of(annotation)
    compile_check(item)
    check_placement(item)


def _verify_item(annotation: Any) -> None:
    verify(item_of(annotation)[0])


def _must(do: Callable[[Any], object], what: str, annotation: Any) -> None:
    try:
        do(annotation)
    except AnnotationError as error:
        raise AnnotationError(f"{what}: {error}") from None


def describe_method(
    service: str,
    name: str,
    function: Callable[..., Any],
    idempotent: bool = False,
    throws: tuple[type[RpcError], ...] = (),
) -> Method:
    """The method's description, annotations as written. TypeError says what can't be a method, and why."""
    qualified = f"{service}.{name}"
    if name.startswith("_"):
        raise TypeError(f"{qualified}(): a method's name can't begin with an underscore; choose another name")
    if name in RESERVED_METHODS:
        raise TypeError(f"{qualified}(): a client has {name!r} itself; choose another name")
    if not inspect.isfunction(function):
        raise TypeError(f"{qualified}: @rrpc.method goes on plain methods, not on {type(function).__name__}")
    signature = inspect.signature(function)
    own, *rest = signature.parameters.values() or (None,)
    if own is None or own.kind in (own.VAR_POSITIONAL, own.VAR_KEYWORD, own.KEYWORD_ONLY):
        raise TypeError(f"{qualified}(): the first parameter must be self")
    parameters = tuple(_parameter(qualified, parameter) for parameter in rest)
    if signature.return_annotation is inspect.Signature.empty:
        raise TypeError(f"{qualified}(): the result has no annotation; write -> None if there is none")
    method = Method(
        qualified,
        inspect.getdoc(function) or "",
        parameters,
        signature.return_annotation,
        function,
        idempotent,
        _errors(qualified, throws),
    )
    if not any(isinstance(a, str) for a in (method.result, *(p.annotation for p in parameters))):
        method.resolved()  # what can be known now is refused now
    return method


def _errors(qualified: str, throws: tuple[Any, ...]) -> tuple[type[RpcError], ...]:
    known: dict[str, Any] = {}
    for cls in throws:
        if not is_declared(cls):
            hint = "decorate it with @rrpc.error"
            if isinstance(cls, type) and issubclass(cls, RpcError) and cls.__module__ == RpcError.__module__:
                hint = "any method may fail with a status; declare an error of your own with @rrpc.error"
            raise TypeError(f"{qualified}(): throws {getattr(cls, '__name__', cls)!s:.60}: {hint}")
        if known.setdefault(cls.__name__, cls) is not cls:
            raise TypeError(f"{qualified}(): throws two errors called {cls.__name__}")
    return tuple(known.values())


def check_override(name: str, method: Method, function: Any) -> None:
    """TypeError if ``function``, which a subclass has in the method's place, can't be called as the method is."""
    by_place = [p.name for p in method.parameters if not p.keyword_only]
    by_name = {p.name: None for p in method.parameters if p.keyword_only}
    try:
        inspect.signature(function).bind(None, *by_place, **by_name)
    except TypeError as error:
        raise TypeError(f"{name} doesn't take the arguments of {method.name}(): {error}") from None


def _parameter(qualified: str, parameter: inspect.Parameter) -> Parameter:
    what = f"{qualified}(): parameter {parameter.name!r}"
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
        raise TypeError(f"{qualified}(): {stars}{parameter.name} isn't supported; name each parameter")
    if parameter.name in RESERVED_PARAMETERS:
        raise TypeError(f"{what}: the name is taken by the caller's own {parameter.name}=")
    if parameter.annotation is inspect.Parameter.empty:
        raise TypeError(f"{what} has no annotation")
    return Parameter(
        parameter.name,
        parameter.annotation,
        parameter.default,
        parameter.kind is parameter.KEYWORD_ONLY,
        parameter.kind is parameter.POSITIONAL_ONLY,
    )


def signature_text(method: Method) -> str:
    """The method as its ``def`` line would show it."""
    parts = []
    for parameter in method.parameters:
        default = "" if parameter.default is MISSING else f" = {parameter.default!r}"
        parts.append(f"{parameter.name}: {type_text(parameter.annotation)}{default}")
    return f"{method.name}({', '.join(parts)}) -> {type_text(method.result)}"


def streams_as(iterator: Any, method: Method) -> Method:
    """The method with its streams as this one of the generic types, whichever they are written as."""

    def annotation(given: Any) -> Any:
        item, stream = item_of(given)
        return iterator[item] if stream else given

    parameters = tuple(replace(p, annotation=annotation(p.annotation)) for p in method.parameters)
    return replace(method, parameters=parameters, result=annotation(method.result))


def _server_stream(method: Method, hints: dict[str, Any]) -> Method | None:
    """Returns the method with iterators in place of its server stream; None if it has none.

    Raises AnnotationError where that parameter, or what stands beside it, is wrong.
    """
    found = [parameter for parameter in method.parameters if _awaits(hints[parameter.name]) is not None]
    if not found:
        return None
    what = f"{method.name}(): parameter {found[0].name!r}: "
    items = typing.get_args(hints[found[0].name])
    if len(items) != 2:
        raise AnnotationError(
            f"{what}write ServerStream[S, T], with S for the client's items and T for the server's"
        )
    if len(found) > 1:
        raise AnnotationError(f"{what}a call has one server stream")
    if hints["return"] not in (None, types.NoneType):
        raise AnnotationError(f"{what}a method with a server stream gives its items by it: write -> None")
    # The other kind would hold up the loop, or be awaited where nothing can be.
    if inspect.iscoroutinefunction(method.function) != _awaits(hints[found[0].name]):
        raise AnnotationError(
            f"{what}an async def takes rrpc.aio.ServerStream, any other method rrpc.ServerStream"
        )
    rest = tuple(parameter for parameter in method.parameters if parameter is not found[0])
    if items[0] not in (None, types.NoneType):
        rest = (*rest, replace(found[0], annotation=_iterator(items[0])))
    return replace(method, parameters=rest, result=_iterator(items[1]), stream_parameter=found[0].name)


def _iterator(item: Any) -> Any:
    return types.GenericAlias(Iterator, (item,))


def _awaits(annotation: Any) -> bool | None:
    """Returns whether it is an asyncio server stream; None if it isn't a server stream."""
    awaits: bool | None = getattr(typing.get_origin(annotation) or annotation, "rpc_awaits", None)
    return awaits
