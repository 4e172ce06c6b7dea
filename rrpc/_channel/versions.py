"""Versions of interfaces: what client and server agree on when they connect.

A server's HELLO has the fingerprints of its services. Where a client's own is among them, both have the same
interface, and nothing is asked. Where it isn't, the client asks for the server's description, compares
the two and goes on, with the arguments that the server knows, or fails at once. docs/protocol.md has the bytes.
"""
# Runs in the thread that connects, or in one that makes the first call over a connection. All of `hello` and the
# description is the server's, and may be anything.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rrpc._interface import AnnotationError, Interface, OutSpec, Parameter, Plan
from rrpc.codec import Message, decode
from rrpc.errors import (
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    NotFound,
    ProtocolError,
    ResourceExhausted,
    RpcError,
    Unavailable,
    Unimplemented,
)

if TYPE_CHECKING:
    from rrpc.schema import Parameter as SchemaParameter
    from rrpc.schema import Service

FINGERPRINTS = "fingerprints"
"""The field of HELLO: 16 bytes for each service."""

DESCRIPTION_VERSION = 1
"""Of what ``rrpc.Reflection.describe`` gives."""

ANSWER_BYTES_MAX = 4 << 20
"""Length of an answer of ``rrpc.Reflection`` that is read: what is made of it takes seconds for each MiB at worst."""

_PRINT_BYTES = 16
_NOTHING = bytes(_PRINT_BYTES)  # of a service that can't be described: nobody has this fingerprint
# Bounds the field of HELLO. Services beyond it are compared by their descriptions.
_SERVICES_MAX = 256
_SHOWN_MAX = 3
_SHOWN_CHARS = 500

Encoder = Callable[..., tuple[bytes, Message]]
Describe = Callable[[str], tuple[bytes, Any]]
"""Calls the server's ``rrpc.Reflection.describe``, and returns the answer's payload and buffers."""


def introduce(interfaces: Sequence[Interface]) -> dict[str, bytes]:
    """Returns the HELLO entries that describe a server's services."""
    return {FINGERPRINTS: b"".join(map(_fingerprint, interfaces[:_SERVICES_MAX]))}


def _fingerprint(interface: Interface) -> bytes:
    from rrpc.schema import fingerprint, service_of
    from rrpc.schema.effort import TooIntricate

    try:
        return bytes.fromhex(fingerprint(service_of(interface)))
    except (AnnotationError, TooIntricate):  # two classes of one name among them
        return _NOTHING


class Agreement:
    """Parameters that a client's requests use on a connection."""

    def __init__(self) -> None:
        self._others: dict[str, Sequence[SchemaParameter]] = {}

    def use_parameters(self, method: str, parameters: Sequence[SchemaParameter]) -> None:
        """``method``, by its full name, has these at the server."""
        self._others[method] = parameters

    def encoder(self, plan: Plan) -> Encoder:
        """Encodes the arguments of a method."""
        there = self._others.get(plan.name)
        if there is not None:  # what is a stream is no argument
            there = [parameter for parameter in there if not parameter.stream]
        if there is None or [parameter.name for parameter in there] == list(plan.names):
            return plan.encode_arguments
        return _Adapted(plan, there)


def agree(
    fingerprints: Mapping[str, str],
    hello: Mapping[bytes, bytes],
    describe: Describe,
    interface: Callable[[str], Interface],
    address: str,
) -> Agreement:
    """Compare a client's services, given by their fingerprints, with the server's.

    ``interface`` gives the client's own interface of a service; it and ``describe`` are asked only where
    fingerprints differ. Raises FailedPrecondition where the two can't work together, or where that can't be told.
    """
    agreement = Agreement()
    offered = hello.get(FINGERPRINTS.encode(), b"")[: _SERVICES_MAX * _PRINT_BYTES]
    known = {offered[at : at + _PRINT_BYTES] for at in range(0, len(offered), _PRINT_BYTES)}
    for service, fingerprint in fingerprints.items():
        if bytes.fromhex(fingerprint) in known:
            continue
        try:
            theirs = _described(*describe(service))
        except (Cancelled, DeadlineExceeded, ProtocolError, ResourceExhausted, Unavailable):
            # These tell of the connection and not of the interface.
            raise
        except NotFound:
            continue  # no such service there: its calls will say so
        except (RpcError, ValueError) as error:
            describes_none = isinstance(error, Unimplemented)
            why = "it describes none (builtin=False, --no-builtin)" if describes_none else str(error)
            raise _unknown(service, fingerprint, address, why) from None
        from rrpc.schema.effort import TooIntricate

        try:
            problem = _compare(agreement, interface(service), *theirs, fingerprint, address)
        except TooIntricate as error:
            raise _unknown(
                service, fingerprint, address, f"its description can't be compared: {error}"
            ) from None
        if problem:
            raise FailedPrecondition(problem)
    return agreement


def read_answer(payload: bytes, blocks: list[Any] | None) -> Any:
    """Decodes an answer of ``rrpc.Reflection``. ValueError says that it is too long."""
    if len(payload) > ANSWER_BYTES_MAX:
        raise ValueError(f"it has {len(payload)} bytes, and at most {ANSWER_BYTES_MAX} are read")
    return decode(payload, blocks)


def _described(payload: bytes, blocks: list[Any] | None) -> tuple[Service, str]:
    """Read what a server says of a service, and its fingerprint.

    ValueError if that is of a later release, or of no rrpc server.
    """
    from rrpc.schema.canonical import with_fingerprint

    try:
        description = read_answer(payload, blocks)
        # By the very class: an array has its own errors for a name, and numbers of other kinds for a comparison.
        if type(description) is not dict:
            raise TypeError(f"it is {type(description).__name__}")
        version = description["version"]
        if type(version) is not int or version != DESCRIPTION_VERSION:
            raise ValueError(f"version {version!r:.20}")
        return with_fingerprint(description["service"])
    except RpcError:
        raise
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"its description can't be read: {error!r:.200}") from None


def _unknown(service: str, fingerprint: str, address: str, why: str) -> FailedPrecondition:
    """Refuses to connect: nothing is called on the chance that it fits."""
    # No call is made on the chance that it fits.
    return FailedPrecondition(
        f"{service}: the server at {address} doesn't have this client's version of the interface ({fingerprint}), "
        f"and whether its own fits can't be told: {why}. Generate the client from the server's version with "
        f"rrpc-gen, or call by name with rrpc.connect(), which compares nothing"
    )


def _compare(
    agreement: Agreement, own: Interface, theirs: Service, other: str, fingerprint: str, address: str
) -> str:
    """Why the two versions can't work together; what the client has to heed if they can.

    ``other`` is the fingerprint of the server's version, ``theirs``.
    """
    from rrpc.schema import service_of
    from rrpc.schema.compatibility import compare_services, obstacles

    if other == fingerprint:  # HELLO had no room for it
        return ""
    ours = service_of(own)
    changes = compare_services(ours, theirs)
    found = obstacles(ours, theirs, changes)
    if found:
        # Types are shown whole, and those of the server may be of any length.
        shown = "; ".join(f"{change!s:.{_SHOWN_CHARS}}" for change in found[:_SHOWN_MAX])
        more = f"; and {len(found) - _SHOWN_MAX} more" if len(found) > _SHOWN_MAX else ""
        return (
            f"{own.name}: this client's version of the interface ({fingerprint}) doesn't fit the one at {address} "
            f"({other}). From the client's to the server's: {shown}{more}. Generate the client again with "
            f"rrpc-gen, or have the server updated"
        )
    for change in changes:
        _debug("%s: from the client's version to the server's: %s", own.name, change)
    for method in theirs.methods:
        agreement.use_parameters(f"{own.name}.{method.name}", method.parameters)
    return ""


def _debug(text: str, *values: object) -> None:
    import logging

    logging.getLogger("rrpc.client").debug(text, *values)


class _Adapted:
    """Encodes the arguments of a method that has other parameters at the server."""

    def __init__(self, plan: Plan, there: Sequence[SchemaParameter]) -> None:
        self._plan = plan
        self._by_place: list[int] = []
        self._by_name: dict[str, int] = {}
        self._unknown: list[tuple[int, Parameter]] = []
        known = {parameter.name for parameter in there}
        places = [parameter for parameter in there if not parameter.keyword_only]
        for place, parameter in enumerate(plan.parameters):
            same_place = not parameter.keyword_only and place == len(self._by_place) < len(places)
            if same_place and (places[place].name == parameter.name or places[place].positional_only):
                self._by_place.append(place)
            elif parameter.name in known:
                self._by_name[parameter.name] = place
            else:
                self._unknown.append((place, parameter))

    def __call__(self, arguments: Sequence[Any], out: OutSpec | None = None) -> tuple[bytes, Message]:
        for place, parameter in self._unknown:
            if not _is_default(arguments[place], parameter.default):
                raise Unimplemented(
                    f"{self._plan.name}(): the server's version has no parameter {parameter.name!r}: leave it out, "
                    f"or have the server updated"
                )
        return self._plan.encode_arguments(arguments, out, self._arrange)

    def _arrange(self, values: Sequence[Any]) -> dict[str, Any]:
        named = {name: values[place] for name, place in self._by_name.items()}
        return {"a": [values[place] for place in self._by_place], "k": named}


def _is_default(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))
