"""Streams in signatures: ``Iterator[T]`` is any number of T, one after the other."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .mismatch import ITERATORS, AnnotationError

if TYPE_CHECKING:
    from .interface import Method, Parameter

__all__ = ["RECEIVES", "SENDS", "check_streams", "item_of", "kind_of", "server_stream"]

SENDS, RECEIVES = 2, 4
"""What the client does in a call, as the request says it: it sends a stream of items, it receives one."""


def item_of(annotation: Any) -> tuple[Any, bool]:
    """Returns the type that is sent for an annotation, and whether it is a stream of items of that type.

    Raises AnnotationError if an iterator has no item type.
    """
    origin = typing.get_origin(annotation)
    if origin in (
        typing.Union,
        types.UnionType,
    ):  # as asyncio clients have it: AsyncIterable[T] | Iterable[T]
        members = typing.get_args(annotation)
        if all(typing.get_origin(member) in ITERATORS for member in members):
            annotation, origin = members[0], typing.get_origin(members[0])
    if isinstance(annotation, type) and annotation in ITERATORS:
        origin = annotation
    if origin not in ITERATORS:
        return annotation, False
    arguments = typing.get_args(annotation)
    if not arguments:
        raise AnnotationError(f"{origin.__name__} of what? Write {origin.__name__}[...]")
    return arguments[0], True


def kind_of(parameters: Sequence[Parameter], result: Any) -> int:
    """Returns which streams a method has: ``SENDS``, ``RECEIVES``, both or 0."""
    sends = any(item_of(parameter.annotation)[1] for parameter in parameters)
    return SENDS * sends | RECEIVES * item_of(result)[1]


def check_streams(
    name: str, parameters: Sequence[Parameter], result: Any, function: Callable[..., Any]
) -> None:
    """``AnnotationError`` where a method's streams stand as they can't."""
    for parameter in parameters:
        if not item_of(parameter.annotation)[1]:
            continue
        what = f"{name}(): parameter {parameter.name!r}: "
        if len(parameters) > 1:
            raise AnnotationError(f"{what}a method that takes a stream takes nothing else")
        if parameter.default is not inspect.Parameter.empty:
            raise AnnotationError(f"{what}a stream has no default")
        if parameter.keyword_only or parameter.positional_only:
            raise AnnotationError(f"{what}a stream stands alone, without '*' and '/'")
    generates = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    if generates and not item_of(result)[1]:
        kind = "AsyncIterator" if inspect.isasyncgenfunction(function) else "Iterator"
        raise AnnotationError(f"{name}(): it yields, so that its result is a stream: write -> {kind}[...]")


def server_stream(method: Method, hints: dict[str, Any]) -> Method | None:
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
