"""Base classes of interceptors, whose generator methods run around a call of any style."""

# One interceptor serves all calls of a client or a server, in many threads and loops at the same time. Each generator
# that its methods give belongs to one call.

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, TypeVar

from rrpc._call.chain import Link, Steps

__all__ = ["ClientInterceptor", "Interceptor", "Link", "ServerInterceptor", "checked", "links"]

_I = TypeVar("_I", bound="Interceptor")


class Interceptor:
    """The base of both kinds. A method that isn't overridden costs nothing."""

    side: ClassVar[str] = ""

    def unary(self, call: Any) -> Steps:
        """Surrounds a call with one request and one reply."""
        return (yield call)

    def stream(self, call: Any) -> Steps:
        """Surrounds the opening of a call with streams.

        ``call.map_sent(f)``, ``call.map_received(f)`` and ``call.on_end(f)`` reach what comes after that.
        """
        return (yield call)


class ClientInterceptor(Interceptor):
    """Stands around the calls of a client; ``call`` is an ``OutgoingCall``.

    ``result = yield call`` makes the call; it raises the call's error there. Yielding the call again makes it again,
    returning without that answers in its place. What is returned is the call's result.
    """

    side = "client"


class ServerInterceptor(Interceptor):
    """Stands around the handlers of a server; ``call`` is a ``ServedCall``.

    ``result = yield call`` runs the handler, once; what it raises is raised there. Returning without that answers in
    its place. What is returned goes to the caller.
    """

    side = "server"
    names_callers: ClassVar[bool] = False
    """Whether it calls ``call.context.set_token_subject``. A server with such an interceptor checks principals that ask
    for a token once all its interceptors have run."""


def checked(interceptors: Iterable[_I] | None, kind: type[_I]) -> tuple[_I, ...]:
    """``interceptors`` as a tuple; raises TypeError for what isn't an instance of ``kind``."""
    if interceptors is None:
        return ()
    if isinstance(interceptors, (str, Interceptor)) or not isinstance(interceptors, Iterable):
        raise TypeError(f"interceptors must be a list of them, not {_shown(interceptors)}")
    given = tuple(interceptors)
    for one in given:
        if not isinstance(one, kind):
            raise TypeError(
                f"a {kind.side}'s interceptors must be instances of rrpc.{kind.__name__}: {_why_not(one)}"
            )
    return given


def _why_not(one: object) -> str:
    if isinstance(one, type):
        return f"pass an instance, {one.__name__}(...), not the class"
    if isinstance(one, Interceptor):
        return f"{type(one).__name__} is for a {one.side or 'client or server'}"
    return f"{_shown(one)} isn't"


def _shown(thing: object) -> str:
    return (
        f"{type(thing).__name__} {str(thing)[:80]!r}"
        if isinstance(thing, str)
        else f"a {type(thing).__name__}"
    )


def links(interceptors: Sequence[Interceptor], kind: str) -> tuple[Link, ...]:
    """The methods called ``kind`` of those that have one of their own, the outermost first."""
    default = getattr(Interceptor, kind)
    return tuple(getattr(one, kind) for one in interceptors if getattr(type(one), kind) is not default)
