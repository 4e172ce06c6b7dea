"""Checks JSON Web Tokens. PyJWT is imported here and nowhere else, when the first ``JwtTokens`` is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rrpc.errors import Unauthenticated


class JwtTokens:
    """Checks JSON Web Tokens (RFC 7519), for ``ServerToken(JwtTokens(key, algorithms=["RS256"], audience="rrpc"))``.

    A good token has a signature by one of ``algorithms``, hasn't expired (``exp``, which it must have), is valid
    already (``nbf``), and has the audience (``aud``) and the issuer (``iss``). Other calls get Unauthenticated, whose
    message says what is wrong. The token's subject is then ``rrpc.context().peer.token``. It needs PyJWT, which
    ``rrpc-rdma[jwt]`` installs.

    Args:
        key: The secret or public key as PyJWT takes it, or a function of a token's header (a dict) that gives one, for
            servers that know several by their ``kid``.
        algorithms: Algorithms that signatures may have, such as ``["EdDSA"]``; ``none`` isn't one.
        audience: The audience that tokens must have, or several of which they must have one; None: they have none.
        issuer: The issuer that tokens must have; None: any.
        leeway: Seconds by which clocks may differ.
        subject: The claim that names the caller; tokens must have it.

    Raises:
        ImportError: PyJWT isn't installed.
        TypeError: ``algorithms`` is a str.
        ValueError: There is no algorithm, one is ``none``, or PyJWT has none of that name here.
    """

    def __init__(
        self,
        key: Any,
        *,
        algorithms: Iterable[str],
        audience: str | Iterable[str] | None = None,
        issuer: str | None = None,
        leeway: float = 0.0,
        subject: str = "sub",
    ) -> None:
        try:
            import jwt
        except ImportError:
            raise ImportError("JwtTokens needs PyJWT: pip install 'rrpc-rdma[jwt]'") from None
        self._jwt: Any = jwt
        self._algorithms = _checked(algorithms, jwt.PyJWS().get_algorithms())
        self._key_of: Callable[[dict[str, Any]], Any] = key if callable(key) else lambda header: key
        self._audience = audience if audience is None or isinstance(audience, str) else list(audience)
        self._issuer = issuer
        self._leeway = leeway
        self._subject = subject

    def __call__(self, token: str, call: Any) -> str:
        """Returns the token's subject. Raises Unauthenticated if the token isn't good."""
        try:
            # Nothing is verified yet: the header only chooses the key, and the signature is checked with that.
            key = self._key_of(self._jwt.get_unverified_header(token))
            claims = self._jwt.decode(
                token,
                key,
                # These only, whatever algorithm the token's header names.
                algorithms=self._algorithms,
                audience=self._audience,
                issuer=self._issuer,
                leeway=self._leeway,
                options={"require": ["exp", self._subject]},
            )
        except self._jwt.PyJWTError as error:
            raise Unauthenticated(f"the token isn't good: {error}") from None
        subject = claims[self._subject]
        if not isinstance(subject, str) or not subject:
            raise Unauthenticated(f"the token isn't good: its claim {self._subject!r} is no text")
        return subject


def _checked(algorithms: Iterable[str], known: Iterable[str]) -> list[str]:
    if isinstance(algorithms, str):
        raise TypeError(f"algorithms is a list of names, not the str {algorithms!r}")
    given = list(algorithms)
    if not given:
        raise ValueError('name the algorithms that signatures may have, such as ["EdDSA"]')
    usable = {name for name in known if name.lower() != "none"}
    for name in given:
        if name not in usable:
            raise ValueError(
                f"{name!r} is no algorithm of signatures; there are {', '.join(sorted(usable))} "
                "(those with public keys need the package cryptography)"
            )
    return given
