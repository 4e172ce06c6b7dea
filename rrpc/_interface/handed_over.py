"""Parts of signatures that compiled plans hand over to Python: types that the core has no node for.

Python checks, packs and reads the values of such a part, as it does those of whole methods where no plan is compiled.
The core does everything around it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rrpc.codec import Refused, decode_part, encode_part
from rrpc.errors import RpcError

from .borrowed import holds_borrowed
from .checks import compile_check
from .dimensions import names_of
from .mismatch import Check, Mismatch


def can_be_handed_over(annotation: Any) -> bool:
    """Returns whether a part of a signature is independent of the others.

    Named dimensions share their sizes with other arguments. Borrowed arrays decide how all blocks are decoded.
    """
    return not holds_borrowed(annotation) and not any(True for _ in names_of(annotation))


def handed_over(annotation: Any, depth: int) -> tuple[Any, ...]:
    """Describes the node of a part that stands ``depth`` levels deep in its argument or result."""
    check = compile_check(annotation)
    return ("python", _packer(check, depth), _reader(check))


def _packer(check: Check, depth: int) -> Callable[[Any, int], Any]:
    def pack(value: Any, taken: int) -> Any:
        """Returns the payload of a value, or (payload, buffers); ``taken`` buffers stand before these.

        Returns None for what can't be sent: packing the whole message again tells where it stands.
        """
        try:
            payload, buffers = encode_part(check(value), depth, taken)
        except (Mismatch, Refused):
            return None
        return (payload, buffers) if buffers else payload

    return pack


def _reader(check: Check) -> Callable[[bytes, list[Any] | None, int], tuple[Any, int] | None]:
    def read(payload: bytes, blocks: list[Any] | None, taken: int) -> tuple[Any, int] | None:
        """Returns a value and the number of blocks taken up to its end; None where it is wrong, as ``pack`` does."""
        try:
            value, taken = decode_part(payload, blocks, taken)
            return check(value), taken
        except (Mismatch, RpcError):
            return None

    return read
