"""The transport that rrpc:// would choose between an address of this machine and a server's, and why."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import rrpc

from .common import BadInput

_SCHEMES = ("rrpc", "rrpcs", "tcps", "shm", "tcp", "verbs", "verbs+tcp")
_ANY_PORT = 7471
_WHY = {
    "shm": "both ends are on one host",
    "verbs": "both ends have an adapter, and the two reach each other",
    "tcp": "nothing better can be had between the two",
}


def choice(
    here: str, there: str, report: Mapping[str, Any], timeout: float, tls: Mapping[str, Any]
) -> dict[str, Any]:
    """Finds the transport by connecting if a server answers ``there``, else from what this end has.

    Raises BadInput, which says which of the two is no address.
    """
    own = _own_address(here)
    scheme, host, port = _parse(there)
    found: dict[str, Any] = {"from": here, "to": there}
    their = own if scheme == "shm" else _resolve(host, there)
    source = their if _is_own(their) else _source(their, port or _ANY_PORT) or own
    if source not in (own, their):
        found["note"] = f"this machine's route to {host} leaves from {source}, not from {here}"
    if scheme == "shm" or port is not None:
        try:
            return found | _connected(there if "://" in there else f"rrpc://{there}", scheme, timeout, tls)
        except (rrpc.Unavailable, rrpc.DeadlineExceeded, rrpc.ProtocolError) as error:
            if scheme not in ("rrpc", "rrpcs"):
                return found | _outcome("connecting", why_not={scheme: str(error)})
            found["no_answer"] = str(error)
    return found | _reasoned(source, their, host, report)


def _outcome(
    by: str, transport: str | None = None, why: str = "", why_not: dict[str, str] | None = None
) -> dict[str, Any]:
    return {"by": by, "transport": transport, "why": why, "why_not": why_not or {}}


def _parse(text: str) -> tuple[str, str, int | None]:
    """Scheme, host (of shm:// the name) and port, where there is one."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "rrpc", text
    if scheme not in _SCHEMES:
        raise BadInput(f"{text}: the unknown scheme {scheme!r}; known are {', '.join(_SCHEMES)}")
    rest = rest.partition("?")[0]
    if scheme == "shm":
        return scheme, rest, None
    host, colon, port = rest.rpartition(":")
    if not colon or "]" in port or (":" in host and not host.endswith("]")):
        host, port = rest, ""
    if separator and not port:
        raise BadInput(f"{text}: no port; write {scheme}://{host}:{_ANY_PORT}, or {host} alone")
    if port and not (port.isdigit() and 0 < int(port) < 65536):
        raise BadInput(f"{text}: {port!r} is no port")
    return scheme, host.strip("[]"), int(port) if port else None


def _resolve(host: str, text: str) -> str:
    try:
        return str(socket.getaddrinfo(host or "localhost", None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"{text}: {reason}") from None


def _own_address(text: str) -> str:
    address = _resolve(_parse(text)[1] if "://" in text else text.strip("[]"), text)
    if not _is_own(address):
        raise BadInput(
            f"{text} is no address of this machine, whose devices alone are seen from here: "
            "give one of its own first, or run rrpc-info there"
        )
    return address


def _is_own(address: str) -> bool:
    with socket.socket(_family(address), socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _source(address: str, port: int) -> str | None:
    """The address that the kernel's route to ``address`` leaves from."""
    with socket.socket(_family(address), socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, port))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _connected(address: str, scheme: str, timeout: float, tls: Mapping[str, Any]) -> dict[str, Any]:
    with rrpc.connect(address, connect_timeout=timeout, **tls) as client:
        info = client.info()
    transport = info["transport"]
    why = f"the address asks for {scheme}://" if scheme not in ("rrpc", "rrpcs") else _WHY.get(transport, "")
    return _outcome("connecting", transport, why, info["why_not"]) | {"connection": info}


def _reasoned(own: str, their: str, host: str, report: Mapping[str, Any]) -> dict[str, Any]:
    """Explains the choice from what this end has; of the other end only its host is known."""
    allowed = (os.environ.get("RRPC_TRANSPORTS") or ",".join(_WHY)).replace(" ", "").split(",")
    why_not = {name: "RRPC_TRANSPORTS leaves it out" for name in _WHY if name not in allowed}
    for transport in allowed:
        can, why = _can(transport, own, their, host, report)
        if can:
            return _outcome("reasoning", transport, why, why_not)
        why_not[transport] = why
    return _outcome("reasoning", why_not=why_not)


def _can(transport: str, own: str, their: str, host: str, report: Mapping[str, Any]) -> tuple[bool, str]:
    """Returns whether it may be had, and why or why not."""
    state = report["transports"].get(transport, {"usable": False, "why_not": "there is no such transport"})
    if not state["usable"]:
        return False, state["why_not"]
    if transport == "shm":
        same = _is_own(their)
        return same, f"{host} is this host" if same else f"{host} is another host"
    if transport == "verbs":
        return _can_verbs(own, host, report["adapters"])
    return True, _WHY[transport]


def _can_verbs(own: str, host: str, adapters: Sequence[Mapping[str, str]]) -> tuple[bool, str]:
    usable = [adapter for adapter in adapters if not adapter.get("why_not")]
    for adapter in usable:
        if own in adapter.get("addresses", "").split(","):
            kind = adapter.get("transport", "RDMA")
            return True, (
                f"if {host} has a usable {kind} adapter too: the route there leaves by "
                f"{adapter.get('name', '?')} ({own}); else tcp"
            )
    names = ", ".join(adapter.get("name", "?") for adapter in usable)
    return False, f"the route to {host} leaves from {own}, which is no address of an adapter ({names})"
