"""Metadata: what goes beside a call's arguments and its result, such as credentials and trace ids."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgpack

from .errors import InvalidArgument, ProtocolError

__all__ = [
    "EMPTY",
    "TRACE",
    "Metadata",
    "MetadataLike",
    "joined",
    "merged",
    "pack",
    "together",
    "unpack",
]

MetadataLike = Mapping[str, str | bytes | Sequence[str | bytes]]
"""What metadata is given as; a list or tuple is several values under one name."""

TRACE = "rrpc-trace"
"""The name under which traces travel: in a request the bytes that the answer may have, in a reply the answer."""
_NAME = re.compile(r"[a-z0-9_][a-z0-9_.-]*")
_KNOWN_MAX = 4096
_known: set[str] = set()  # names found good
_unpack = msgpack.unpackb


class _Own(threading.local):
    """A thread's own packer."""

    def __init__(self) -> None:
        self.pack = msgpack.Packer().pack


_own = _Own()


class Metadata(Mapping[str, str | bytes]):
    """Metadata as it was received: names and their values, text or bytes. It can't be changed.

    ``metadata["name"]`` is the value, the first where there are several; ``get_all`` gives every one.
    """

    __slots__ = ("_values",)

    def __init__(self, values: MetadataLike | None = None) -> None:
        self._values: dict[str, Any] = {} if values is None else _checked(values)

    def __getitem__(self, name: str) -> str | bytes:
        value = self._values[name]
        first: str | bytes = value[0] if type(value) is list else value
        return first

    def get_all(self, name: str) -> list[str | bytes]:
        """Every value under the name, in the order given; none if there is no such name."""
        value = self._values.get(name, [])
        return list(value) if type(value) is list else [value]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Metadata):
            return self._values == other._values
        return isinstance(other, Mapping) and self._values == dict(other)

    def __hash__(self) -> int:
        return hash(tuple((name, tuple(self.get_all(name))) for name in sorted(self._values)))

    def __repr__(self) -> str:
        return f"Metadata({self._values!r})"


EMPTY = Metadata()


def pack(metadata: MetadataLike) -> bytes:
    """Packs metadata for sending. Raises InvalidArgument, which says what can't be sent and why."""
    values = metadata if _packs_as_is(metadata) else _checked(metadata)
    try:
        packed: bytes = _own.pack(values) if values else b""
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"metadata: a value can't be sent as UTF-8: {error.reason}") from None
    return packed


def _packs_as_is(metadata: MetadataLike) -> bool:
    """Returns whether it can be packed as it is, by one quick look."""
    if type(metadata) is not dict:
        return False
    for name, value in metadata.items():
        kind = type(value)
        if (kind is not str and kind is not bytes) or name not in _known:
            return False
    return True


def joined(*given: MetadataLike | None) -> dict[str, Any]:
    """Joins metadata into a dict that may be changed. A repeated name gets the values given last."""
    return {name: value for one in given if one is not None for name, value in _checked(one).items()}


def together(own: MetadataLike | None, given: MetadataLike | None) -> MetadataLike:
    """Joins a client's own metadata with that of one call, which takes precedence; the core packs it."""
    if given is None:
        return own or {}
    return joined(own, given) if own else given


def merged(one: MetadataLike, other: MetadataLike) -> Metadata:
    """Both; a name that is in both has the values of ``other``."""
    both = Metadata()
    both._values = {**Metadata(one)._values, **Metadata(other)._values}
    return both


def _checked(metadata: MetadataLike) -> dict[str, Any]:
    if type(metadata) is Metadata:
        return metadata._values
    if not isinstance(metadata, Mapping):
        raise InvalidArgument(f"metadata must be a dict of names to str or bytes, not {_shown(metadata)}")
    values: dict[str, Any] = {}
    for name, value in metadata.items():
        if name not in _known:
            _check_name(name)
        kind = type(value)
        values[name] = value if kind is str or kind is bytes else _several(name, value)
    return values


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise InvalidArgument(f"metadata: a name must be a str, not {_shown(name)}")
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"metadata: {name[:80]!r} can't be a name: use lower-case ASCII letters, digits, '_', '-' and '.'"
        )
    if len(_known) >= _KNOWN_MAX:
        _known.clear()
    _known.add(name)


def _several(name: str, value: Any) -> Any:
    if not isinstance(value, (list, tuple)):
        return _value(name, value)
    if not value:
        raise InvalidArgument(f"metadata: {name!r} has an empty list of values; leave it out")
    return _value(name, value[0]) if len(value) == 1 else [_value(name, each) for each in value]


def _value(name: str, value: Any) -> str | bytes:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise InvalidArgument(f"metadata: the value of {name!r} must be str or bytes, not {_shown(value)}")


def _shown(thing: Any) -> str:
    return f"{type(thing).__name__} {thing!r:.80}"


def unpack(packed: bytes) -> Metadata:
    """Unpacks metadata from a peer. Raises ProtocolError, which says what is malformed."""
    if not packed:
        return EMPTY
    try:
        values = _unpack(packed)
    except Exception as error:
        raise ProtocolError(f"malformed metadata: {str(error) or type(error).__name__}") from None
    if _packs_as_is(values):
        metadata = Metadata()
        metadata._values = values
        return metadata
    try:
        return Metadata(values)
    except InvalidArgument as error:
        raise ProtocolError(f"malformed {error}") from None
