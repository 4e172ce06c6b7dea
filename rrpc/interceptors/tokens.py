"""Authenticates callers by a token in the metadata of each call, like HTTP's ``Authorization: Bearer``."""

# Any thread and loop may share one object. Nothing is locked: two calls that need a new token at the same time both
# get one, and the later one is kept.

from __future__ import annotations

import hashlib
import hmac
import inspect
from collections.abc import Awaitable, Callable, Iterable
from time import monotonic
from typing import Any

from rrpc._call.chain import Steps
from rrpc.errors import Unauthenticated

from .base import ClientInterceptor, ServerInterceptor
from .outcomes import within

_NAME = "authorization"
_SCHEME = "Bearer "
_OPEN = ("rrpc.Health", "rrpc.Reflection.describe")


class ClientToken(ClientInterceptor):
    """Sends ``authorization: Bearer TOKEN`` with each call.

    A call that the server refused as Unauthenticated is made again, once, with a new token, if no handler has seen it
    or if the method is idempotent, and if it has no streams.

    Args:
        token: The token, or a function that gets one: it is called for the first call, when ``max_age`` seconds have
            passed, and when a call was refused. Under asyncio it may be ``async``.
        max_age: Seconds for which a token is used; None: until it is refused.
        allow_clear: Sends it where others could read it, too: over unprotected TCP (the loopback interface included)
            and RDMA. Calls fail with FailedPrecondition there otherwise. Shared memory and TLS are private
            (``is_private``).
    """

    def __init__(
        self,
        token: str | Callable[[], str] | Callable[[], Awaitable[str]],
        *,
        max_age: float | None = None,
        allow_clear: bool = False,
    ) -> None:
        if not isinstance(token, str) and not callable(token):
            raise TypeError(f"token must be a str or a function that gets one, not {type(token).__name__}")
        self._get = None if isinstance(token, str) else token
        self._max_age = max_age
        self._allow_clear = allow_clear
        self._token = _checked(token) if isinstance(token, str) else ""
        # The time, by time.monotonic, from which on a new token is to be got; never for a fixed one.
        self._until = float("inf") if isinstance(token, str) else -1.0

    def unary(self, call: Any) -> Steps:
        """Sends the token with a call without streams; fetches another one if it is refused."""
        used = yield from self._add_to(call)
        try:
            return (yield call)
        except Unauthenticated as error:
            if self._get is None or (call.may_have_run and not call.idempotent):
                self._ended(used, error)
                raise
        if self._token == used:  # else another call got a new one meanwhile
            yield from self._renew()
        call.metadata[_NAME] = _SCHEME + self._token
        return (yield call)

    def stream(self, call: Any) -> Steps:
        """Sends the token with a call with streams."""
        used = yield from self._add_to(call)
        call.on_end(lambda error: self._ended(used, error))
        return (yield call)

    def _add_to(self, call: Any) -> Steps:
        """Gives the token that the call is to send."""
        # The call checks each connection before it is sent, so a retry doesn't leak the token either.
        call.private_only |= not self._allow_clear
        used = (yield from self._renew()) if monotonic() >= self._until else self._token
        call.metadata[_NAME] = _SCHEME + used
        return used

    def _ended(self, used: str, error: BaseException | None) -> None:
        """A call that isn't made again; if it was refused, the next one gets another token."""
        # Unless another call has got a new one meanwhile.
        if isinstance(error, Unauthenticated) and self._get is not None and self._token == used:
            self._until = -1.0

    def _renew(self) -> Steps:
        assert self._get is not None
        token = self._get()
        if inspect.isawaitable(token):
            token = yield token
        self._token = _checked(token)
        self._until = monotonic() + (float("inf") if self._max_age is None else self._max_age)
        return self._token


def _checked(token: Any) -> str:
    if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable():
        shown = "an empty one" if token == "" else "one that isn't printable ASCII text"
        raise ValueError(f"a token is a str without line breaks, not {shown}")
    return token


Check = Callable[[str, Any], Any]


class ServerToken(ServerInterceptor):
    """Lets only those call who send a token that is known; others get Unauthenticated.

    Args:
        tokens: One or several, or a function of ``(token, call)`` that gives something true for a good one, or raises
            what the caller shall get, such as ``rrpc.PermissionDenied`` for one that may not call ``call.method``. It
            may be ``async`` where all handlers are. Where it gives a str, that is the token's subject:
            ``rrpc.context().peer.token``, which principals such as ``token:batch`` match. ``JwtTokens`` is such a
            function.
        exempt: Services and methods that anybody may call: by default health checks, and what clients ask for whose
            version of the interface is another one.
    """

    names_callers = True

    def __init__(self, tokens: str | Iterable[str] | Check, *, exempt: Iterable[str] = _OPEN) -> None:
        self._check = tokens if callable(tokens) else _fixed(tokens)
        if isinstance(exempt, str):
            raise TypeError(f"exempt is a list of names, not the str {exempt!r}")
        self._exempt = frozenset(exempt)

    def unary(self, call: Any) -> Steps:
        """Checks the token of a call. Raises Unauthenticated if it is missing or wrong."""
        if not within(call.method, self._exempt):
            known = self._check(_token_of(call.metadata), call)
            if inspect.isawaitable(known):
                known = yield known
            if not known:
                raise Unauthenticated("the token isn't one that this server knows")
            if isinstance(known, str):
                call.context.set_token_subject(known)
        return (yield call)

    stream = unary


def _token_of(metadata: Any) -> str:
    given = metadata.get_all(_NAME)
    if not given:
        raise Unauthenticated("the call has no token: send the metadata authorization: Bearer TOKEN")
    if len(given) > 1 or not isinstance(given[0], str) or not given[0].lower().startswith(_SCHEME.lower()):
        raise Unauthenticated("the metadata authorization must be Bearer TOKEN, given once")
    token: str = given[0][len(_SCHEME) :].strip()
    return token


def _fixed(tokens: str | Iterable[str]) -> Check:
    known = [_digest(_checked(token)) for token in ([tokens] if isinstance(tokens, str) else tokens)]
    if not known:
        raise ValueError("without a token nobody could call: give at least one")

    def check(token: str, call: Any) -> bool:
        # All are compared, and digests of one length, so that the time taken says nothing of them.
        digest = _digest(token)
        return sum(hmac.compare_digest(digest, one) for one in known) > 0

    return check


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()
