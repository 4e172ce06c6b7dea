"""The caller of a call, as its transport has proved it."""

# Any thread may call these: a Peer never changes, and lru_cache has a lock of its own.

from __future__ import annotations

from functools import lru_cache
from time import monotonic
from typing import Any, NoReturn

from rrpc import _core

from .peer_names import peer_name

_REMEMBERED_S = 10.0  # a uid may get another name


class Peer(str):
    """Describes who made a call. It is also the caller's address as text.

    The text is ``host:port``, or ``pid 4711 uid 1000 (train.py)`` for a process on this host that calls over shared
    memory. The attributes hold only what the transport has proved: the kernel over shared memory, TLS with client
    certificates over TCP. Callers can't choose them. The attributes can't be changed.

    Attributes:
        kind: "process", "certificate" or "anonymous".
        name: The user name of a process, or its uid as text if the name database has no name for it; the first
            DNS name or URI of a certificate, or its subject; "" for an anonymous caller.
        uid: The effective user id of a process when it connected; None otherwise.
        gid: Its effective group id; None otherwise.
        pid: Its process id; None otherwise. It may belong to another process once the caller has ended.
        dns_names: The DNS names of a certificate.
        uris: The URIs of a certificate, such as its SPIFFE id.
        subject: The subject of a certificate, such as "CN=worker-3,O=Example"; "" otherwise.
        token: The subject of the token that came with the call, as an interceptor has checked it; "" otherwise.
    """

    __slots__ = ("dns_names", "gid", "kind", "name", "pid", "subject", "token", "uid", "uris")
    kind: str
    name: str
    uid: int | None
    gid: int | None
    pid: int | None
    dns_names: tuple[str, ...]
    uris: tuple[str, ...]
    subject: str
    token: str

    def __new__(
        cls,
        text: str = "",
        *,
        kind: str = "anonymous",
        name: str = "",
        uid: int | None = None,
        gid: int | None = None,
        pid: int | None = None,
        dns_names: tuple[str, ...] = (),
        uris: tuple[str, ...] = (),
        subject: str = "",
        token: str = "",
    ) -> Peer:
        """Makes a peer, for tests of code that looks at one."""
        if kind not in ("process", "certificate", "anonymous"):
            raise ValueError(f'kind must be "process", "certificate" or "anonymous", not {kind!r:.60}')
        made = super().__new__(cls, text)
        values = (tuple(dns_names), gid, kind, name, pid, subject, token, uid, tuple(uris))
        # Not by plain assignment, which __setattr__ refuses.
        for slot, value in zip(cls.__slots__, values, strict=True):
            object.__setattr__(made, slot, value)
        return made

    @property
    def identity(self) -> str:
        """Kind and name in one word for logs: ``process:alice``, ``certificate:worker-3``; "" if anonymous.

        The subject of a token follows, if the call carried one: ``process:alice,token:batch``.
        """
        proved = f"{self.kind}:{self.name}" if self.kind != "anonymous" else ""
        return ",".join(filter(None, (proved, f"token:{self.token}" if self.token else "")))

    def with_token(self, subject: str) -> Peer:
        """Returns the same peer with the subject of a token."""
        return Peer(str(self), **{**self._attributes(), "token": subject})

    def _attributes(self) -> dict[str, Any]:
        return {slot: getattr(self, slot) for slot in self.__slots__}

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a Peer can't be changed, {name} included")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a Peer can't be changed, {name} included")

    def __reduce__(self) -> Any:
        return _made, (str(self), self._attributes())


def _made(text: str, attributes: dict[str, Any]) -> Peer:
    return Peer(text, **attributes)


Process = tuple[int, int, int]
Certificate = tuple[str, tuple[str, ...], tuple[str, ...]]


def peer_of(text: str, identity: tuple[Process | None, Certificate | None] | None, token: str = "") -> Peer:
    """Returns the peer for the core's text and its identity; None stands for a call that has ended."""
    process, certificate = identity or (None, None)
    period = int(monotonic() / _REMEMBERED_S)
    peer = _peer(peer_name(text), process, certificate, period)
    return peer.with_token(token) if token else peer


# `period` is part of the key, so entries end with it. The size is bounded, as a server may see any number of peers.
@lru_cache(maxsize=1024)
def _peer(text: str, process: Process | None, certificate: Certificate | None, period: int) -> Peer:
    pid, uid, gid = process or (None, None, None)
    subject, dns_names, uris = certificate or ("", (), ())
    if certificate is not None:
        kind, name = "certificate", next(iter((*dns_names, *uris)), subject)
    elif uid is not None:
        kind, name = "process", _core.user_name(uid) or str(uid)
    else:
        kind, name = "anonymous", ""
    return Peer(
        text,
        kind=kind,
        name=name,
        uid=uid,
        gid=gid,
        pid=pid,
        dns_names=dns_names,
        uris=uris,
        subject=subject,
    )
