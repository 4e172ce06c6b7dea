"""Base of the clients of every style: a channel, and the options of the calls over it."""

# Any thread may make a client, and use it within the rules of its style.

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NoReturn, TypeVar

from rrpc._call.chain import Link
from rrpc._call.outgoing import CallOptions, Prepared, prepare
from rrpc._call.peer_names import peer_name
from rrpc._call.retry import RetryPolicy
from rrpc._channel import Channel, Contract
from rrpc._options import check_names
from rrpc.interceptors import ClientInterceptor, checked, links
from rrpc.metadata import MetadataLike, joined

from .hedging import HedgingPolicy
from .stubs import contract_of

_C = TypeVar("_C", bound="BaseClient")
# Stands for an option that wasn't given, as None has a meaning.
_KEEP: Any = object()


class BaseClient:
    """Made by the clients of each style, with their own ways of connecting and calling."""

    rpc_fingerprints: ClassVar[dict[str, str]] = {}
    """Fingerprints of a generated client's services, by name."""
    _rpc_contract: ClassVar[Contract | None] = None

    def __init__(
        self, address: str | Sequence[str] | Channel, calls: CallOptions, options: dict[str, Any]
    ) -> None:
        check_names(options, Channel.__init__, type(self).__init__)
        if not isinstance(address, (str, list, tuple, Channel)):
            what = type(address).__name__
            raise TypeError(
                f"address must be a str such as rrpc://host:port, a list of them, or a Channel, not {what}"
            )
        self._options = calls
        self._contract = contract_of(type(self))
        self._owns = not isinstance(address, Channel)
        if isinstance(address, Channel):
            if options:
                raise TypeError(f"{', '.join(options)}: the channel has its options already")
            self._channel = address
        else:
            self._channel = Channel(address, **options)
        # Connections that a shared channel has already must agree now, as their calls would fail later.
        if self._contract is not None:
            self._channel.admit(self._contract)

    def with_options(
        self: _C,
        *,
        timeout: float | None = _KEEP,
        metadata: MetadataLike | None = _KEEP,
        wait_for_ready: bool = _KEEP,
        interceptors: Iterable[ClientInterceptor] | None = _KEEP,
        retry: RetryPolicy | None = _KEEP,
        hedging: HedgingPolicy | None = _KEEP,
    ) -> _C:
        """The same client with other options for its calls, on the same channel, which it doesn't close."""
        given: dict[str, Any] = {
            "timeout": timeout,
            "metadata": metadata,
            "wait_for_ready": wait_for_ready,
            "interceptors": _KEEP if interceptors is _KEEP else links_of(interceptors),
            "stream_links": _KEEP if interceptors is _KEEP else links_of(interceptors, "stream"),
            "retry": retry,
            "hedging": hedging,
        }
        _check_policies(given)
        changes = {name: value for name, value in given.items() if value is not _KEEP}
        # Past the constructor, which would connect again.
        clone = object.__new__(type(self))
        clone._options = replace(self._options, **changes)
        clone._contract = self._contract
        clone._channel = self._channel
        clone._owns = False
        return clone

    def _prepare(self, request: Any, timeout: float | None, metadata: MetadataLike | None) -> Prepared:
        return prepare(self._channel, request, self._options, timeout, metadata)

    def info(self) -> dict[str, Any]:
        """Facts of the connection: address, transport, bulk_method, exposure, peer, adapter (verbs), state, why_not.

        ``exposure`` is what keeps the peer to the arrays that are passed to it: "memory window" or "registration
        per call" by an adapter, "checked" in software. ``why_not`` has a reason for each transport not used.
        ``sent_on_to`` is the address of the process that answers, where several have one address. ``rails`` tells which
        rails of the address are connected, and why others aren't. ``channel`` is what ``Channel.info`` says, all there
        is where nothing was connected yet.
        """
        connections = self._channel.connections()
        facts = connections[0].core.info() if connections else {}
        if "peer" in facts:
            facts["peer"] = peer_name(facts["peer"])
        return {**facts, "channel": self._channel.info()}

    def stats(self) -> dict[str, int]:
        """Returns transfer counters, summed over the current connections, with the keys of ``rrpc.stats``."""
        total: dict[str, int] = {}
        for connection in self._channel.connections():
            for name, count in connection.core.stats().items():
                total[name] = total.get(name, 0) + count
        return total

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} can't be pickled or copied, as its connections are this process's: "
            f"pass its address, {self.address!r}, and connect there"
        )

    @property
    def address(self) -> str:
        """The address given to the constructor."""
        return self._channel.target


def call_options(
    timeout: float | None,
    metadata: MetadataLike | None,
    wait_for_ready: bool,
    interceptors: Iterable[ClientInterceptor] | None,
    retry: RetryPolicy | None,
    hedging: HedgingPolicy | None,
) -> CallOptions:
    """The options of a client's calls, as its constructor was given them."""
    _check_policies({"metadata": metadata, "retry": retry, "hedging": hedging})
    around, stream_links = links_of(interceptors), links_of(interceptors, "stream")
    return CallOptions(timeout, metadata, wait_for_ready, around, retry, hedging, stream_links)


def _check_policies(given: dict[str, Any]) -> None:
    for name, kind in (("retry", RetryPolicy), ("hedging", HedgingPolicy)):
        policy = given[name]
        if policy is not None and policy is not _KEEP and not isinstance(policy, kind):
            raise TypeError(f"{name} must be an rrpc.{kind.__name__}, not {policy!r:.60}")
    if given["metadata"] is not _KEEP:
        joined(given["metadata"])  # which refuses what can't be sent


def links_of(interceptors: Iterable[ClientInterceptor] | None, kind: str = "unary") -> tuple[Link, ...]:
    return links(checked(interceptors, ClientInterceptor), kind)
