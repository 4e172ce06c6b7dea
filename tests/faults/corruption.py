"""Damage to a message on its way."""

import random
from collections.abc import Callable

# Fields whose damage is seen at once, as (first byte, bytes): of a frame of tcp, and of a message.
_FRAME_FIELDS = {"magic": (0, 1), "type": (1, 1)}
_MESSAGE_FIELDS = {"magic": (0, 2), "type": (2, 1), "body bytes": (4, 4), "epoch": (8, 4)}
_FRAMES = ("READ", "READ_DATA", "PUSH")


def corrupted(action: str, name: str, chance: random.Random) -> Callable[[bytes], bytes]:
    """Returns what changes the message: a field of its header, or any bit of it."""

    def flip_a_bit(message: bytes) -> bytes:
        changed = bytearray(message)
        at = chance.randrange(8 * len(changed))
        changed[at // 8] ^= 1 << at % 8
        return bytes(changed)

    def change_the_header(message: bytes) -> bytes:
        fields = _FRAME_FIELDS if name in _FRAMES else _MESSAGE_FIELDS
        begin, size = fields[chance.choice(sorted(fields))]
        changed = bytearray(message)
        # No type but 0x60 higher is another one's: none of them has that bit alone.
        changed[begin : begin + size] = bytes(byte ^ 0x30 for byte in changed[begin : begin + size])
        return bytes(changed)

    return change_the_header if action == "corrupt header" else flip_a_bit
