"""Resolves the targets of a channel to addresses.

Addresses are given directly, or come from DNS or from a resolver that the user registered.
"""
# Any thread may register a resolver. Resolving may wait, so channels do it in a task (`connecting.Resolution`) and
# never under their lock.

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rrpc.errors import InvalidArgument, RpcError, Unavailable

Resolver = Callable[[str], Sequence[str]]
"""Gives the addresses for a target such as ``my-scheme://search``. It may wait; what it raises is why there are none.

With an attribute ``period`` it is asked again every so many seconds, else when connections fail.
"""
_BUILT_IN = ("rrpc", "rrpcs", "shm", "tcp", "tcps", "verbs", "verbs+tcp")
_resolvers: dict[str, Resolver] = {}


def register_resolver(scheme: str, resolver: Resolver) -> None:
    """Has targets ``scheme://...`` of channels resolved by it, in this process.

    Args:
        scheme: What stands before ``://``. One that has a resolver gets this one from now on.
        resolver: Returns the addresses for a target; see ``Resolver``.

    Raises:
        ValueError: The scheme is one of rrpc's own.
        TypeError: The resolver can't be called.
    """
    if scheme in _BUILT_IN or not scheme:
        raise ValueError(f"{scheme!r} can't have a resolver; choose another scheme")
    if not callable(resolver):
        raise TypeError(f"a resolver is a function of the target, not {type(resolver).__name__}")
    _resolvers[scheme] = resolver


class Names:
    """The targets of a channel."""

    def __init__(self, target: str | Sequence[str]) -> None:
        targets = [target] if isinstance(target, str) else list(target)
        for one in targets:
            if not isinstance(one, str):
                raise TypeError(f"address must be a str such as rrpc://host:port, not {type(one).__name__}")
        if not targets:
            raise ValueError("the list of addresses is empty: a channel needs one, such as rrpc://host:port")
        self.text = ",".join(targets)
        self._targets = list(dict.fromkeys(address for one in targets for address in _split(one)))
        self.fixed = self._targets if not any(map(_needs_resolving, self._targets)) else None
        """The addresses, where there is nothing to resolve."""
        periods = (getattr(_resolvers.get(_scheme(one)), "period", None) for one in self._targets)
        # By the address that DNS gave for it: of the last two answers, as connecting goes on meanwhile by the first.
        self._hosts: dict[str, str] = {}
        self._latest: dict[str, str] = {}
        self.period: float | None = min((period for period in periods if period is not None), default=None)

    def resolve(self) -> list[str]:
        """The addresses as they are now, each once; the errors of names only where no name has any."""
        found: dict[str, None] = {}
        hosts: dict[str, str] = {}
        errors: list[RpcError] = []
        for target in self._targets:
            try:
                addresses = _resolve(target)
                found |= dict.fromkeys(addresses)
                if _scheme(target) not in _resolvers:
                    hosts |= dict.fromkeys(addresses, _host_and_port(target)[0].strip("[]"))
            except RpcError as error:  # noqa: PERF203
                errors.append(error)
        if not found:
            raise errors[0] if errors else Unavailable(f"{self.text}: the resolver gives no addresses")
        self._hosts, self._latest = self._latest | hosts, hosts
        return list(found)

    def options_for(self, address: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the options for connecting to an address that ``resolve`` gave.

        Over TLS a server must have a certificate for the name that the user wrote: DNS isn't trusted.
        """
        host = self._hosts.get(address)
        asked = any(value for name, value in options.items() if name.partition("_")[0] == "tls")
        secure = asked or _scheme(address) in ("rrpcs", "tcps")
        if host is None or not secure or options.get("tls_peer_name"):
            return options
        return {**options, "tls_peer_name": host}


def _split(target: str) -> list[str]:
    """``rrpc://a:1,b:2`` as two."""
    scheme, separator, rest = target.partition("://")
    if not separator or scheme not in _BUILT_IN or scheme == "shm":
        # A path may have commas in it.
        return [target]
    return [one if "://" in one else f"{scheme}://{one}" for one in rest.split(",")]


def _scheme(target: str) -> str:
    return target.partition("://")[0]


def _host_and_port(target: str) -> tuple[str, str]:
    """The port with the options that follow it, of which some have colons, too."""
    place, question, options = target.partition("://")[2].partition("?")
    host, _, port = place.rpartition(":")
    return host, port + question + options


def _needs_resolving(target: str) -> bool:
    scheme = _scheme(target)
    if scheme in _resolvers:
        return True
    if scheme == "shm" or scheme not in _BUILT_IN:
        return False  # the core says what is wrong with it
    host, _ = _host_and_port(target)
    if not host:
        return False
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return True
    return False


def _resolve(target: str) -> list[str]:
    resolver = _resolvers.get(_scheme(target))
    if resolver is None:
        return _dns(target) if _needs_resolving(target) else [target]
    try:
        addresses = list(resolver(target))
    except RpcError:
        raise
    except Exception as error:
        raise Unavailable(f"{target}: its resolver failed: {error!r}") from error
    for address in addresses:
        if not isinstance(address, str) or _scheme(address) not in _BUILT_IN:
            raise InvalidArgument(f"{target}: its resolver gave {address!r}, which is no address")
    return addresses


def _dns(target: str) -> list[str]:
    """An address for each A and AAAA record, in the order that the system prefers."""
    scheme, (host, port) = _scheme(target), _host_and_port(target)
    try:
        # One type of socket, since each address would otherwise be there once for each type.
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unavailable(f"{target}: {host!r} can't be resolved: {error}") from None
    hosts = dict.fromkeys(str(entry[4][0]) for entry in found)
    return [f"{scheme}://[{ip}]:{port}" if ":" in ip else f"{scheme}://{ip}:{port}" for ip in hosts]


class _File:
    """``file:///path``: an address in each line; lines that begin with # are comments."""

    period = 2.0

    def __call__(self, target: str) -> list[str]:
        path = target.removeprefix("file://")
        try:
            with open(path, encoding="utf-8") as lines:
                addresses = [line.strip() for line in lines]
        except OSError as error:
            raise Unavailable(f"{target} can't be read: {error.strerror}") from None
        return [address for address in addresses if address and not address.startswith("#")]


register_resolver("file", _File())
