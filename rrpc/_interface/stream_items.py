"""The items of a stream: what is worked out once per method, so that sending and receiving one only runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack

from rrpc.codec import (
    BULK_BYTES,
    Message,
    Refused,
    decode,
    decode_frames,
    encode_frames,
    pack,
    prepare,
    refusal,
)
from rrpc.errors import Internal, InvalidArgument, RpcError

from .checks import compile_check
from .dimensions import Dimensions, Sizes
from .mismatch import Mismatch
from .records import RecordCheck
from .senders import PLAIN, sender

__all__ = ["Items", "untyped_item"]

_Encode = Callable[..., tuple[bytes, Message | None]]
_Decode = Callable[..., Any]
_unpack = msgpack.unpackb
_NO_BUFFERS = Message()  # of plain values, which are packed without a look at it


class Items:
    """Encodes and decodes the items of a stream; both ends check the items against their annotation.

    ``argument`` names the parameter that takes the stream; it is "" if the stream is the result.
    ``dimensions`` are the named dimensions of the method, with an item as its result.
    """

    def __init__(self, method: str, argument: str, annotation: Any, dimensions: Dimensions | None) -> None:
        self._what = (
            f"{method}(): an item of {argument!r}" if argument else f"{method}(): an item of the result"
        )
        self._fault: type[RpcError] = InvalidArgument if argument else Internal
        self._dimensions = dimensions
        self._check = compile_check(annotation)
        self._send = sender(annotation, self._check)
        self._plain = type(None) if annotation is None else annotation
        plain = self._plain in PLAIN
        record = isinstance(self._check, RecordCheck) and dimensions is None
        self.encode: _Encode = self._encode
        self.decode: _Decode = self._decode
        if plain:
            self.encode, self.decode = self._encode_plain, self._decode_plain
        elif annotation == list[memoryview]:
            self.encode, self.decode = self._encode_frames, self._decode_frames
        elif record:
            known: Any = self._check
            self._record, self._prefix = known, known.prefix
            self.encode, self.decode = self._encode_record, self._decode_record

    def _encode(self, value: Any, sizes: Sizes | None = None) -> tuple[bytes, Message | None]:
        """An item's payload and buffers; ``sizes`` are those that the arguments have."""
        message = Message()
        try:
            if self._dimensions is None:
                return pack(self._send(value, message), message), message or None
            checked = self._check(value)
            self._dimensions.check_result(checked, sizes, self._fault)
            return pack(prepare(checked, message), message), message or None
        except Mismatch as mismatch:
            raise self._mismatch(mismatch) from None
        except Refused as refused:
            raise self._fault(refusal(refused, self._what).message) from None

    def _decode(self, payload: bytes, blocks: list[Any] | None, sizes: Sizes | None = None) -> Any:
        """The item that has arrived."""
        try:
            value = self._check(decode(payload, blocks))
        except Mismatch as mismatch:
            raise self._mismatch(mismatch) from None
        if self._dimensions is not None:
            self._dimensions.check_result(value, sizes, self._fault)
        return value

    def _mismatch(self, mismatch: Mismatch) -> RpcError:
        return self._fault(f"{self._what}{mismatch.path} isn't as declared: {mismatch}")

    def _encode_frames(self, value: Any, sizes: Sizes | None = None) -> tuple[bytes, Message | None]:
        if type(value) is list:
            try:
                return encode_frames(value)
            except (TypeError, ValueError, BufferError, Refused):
                pass  # the other way says which isn't one, and why
        return self._encode(value)

    def _decode_frames(self, payload: bytes, blocks: list[Any] | None, sizes: Sizes | None = None) -> Any:
        frames = decode_frames(payload, blocks)
        return self._decode(payload, blocks) if frames is None else frames

    def _encode_plain(self, value: Any, sizes: Sizes | None = None) -> tuple[bytes, Message | None]:
        if type(value) is self._plain and (type(value) is not bytes or len(value) < BULK_BYTES):
            try:
                return pack(value, _NO_BUFFERS), None
            except Refused:
                pass  # the other way says what is wrong with it
        return self._encode(value)

    def _decode_plain(self, payload: bytes, blocks: list[Any] | None, sizes: Sizes | None = None) -> Any:
        if blocks is None:
            try:
                value = _unpack(payload)
            except Exception:  # malformed: the full decoder tells
                value = self
            if type(value) is self._plain:
                return value
        return self._decode(payload, blocks)

    def _encode_record(self, value: Any, sizes: Sizes | None = None) -> tuple[bytes, Message | None]:
        members = self._record.plain_members(value)
        if members is not None:
            try:
                return self._prefix + pack(members, _NO_BUFFERS), None
            except Refused:
                pass
        return self._encode(value)

    def _decode_record(self, payload: bytes, blocks: list[Any] | None, sizes: Sizes | None = None) -> Any:
        if blocks is None and payload.startswith(self._prefix):
            try:
                members = _unpack(payload[len(self._prefix) :])
                value = self._record.of_plain(members)
            except Exception:
                value = None
            if value is not None:
                return value
        return self._decode(payload, blocks)


def untyped_item(value: Any) -> tuple[bytes, Message | None]:
    """An item of a caller that knows nothing of the method's signature."""
    message = Message()
    try:
        return pack(prepare(value, message), message), message or None
    except Refused as refused:
        raise refusal(refused, "an item") from None
