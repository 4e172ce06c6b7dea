"""Values on their way out: checked, and as the packer takes them, in one go where that is possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rrpc.codec import BULK_BYTES, Message, prepare

from .borrowed import lender
from .mismatch import EXACT, Check

Sender = Callable[[Any, Message], Any]


def sender(annotation: Any, check: Check) -> Sender:
    """Check a value and make it packable."""
    if annotation in EXACT:
        kind = annotation

        def send_exact(value: Any, message: Message) -> Any:
            return value if type(value) is kind else check(value)

        return send_exact
    if annotation is bytes:

        def send_bytes(value: Any, message: Message) -> Any:
            # Longer ones become buffers, which prepare() sees to.
            if type(value) is bytes and len(value) < BULK_BYTES:
                return value
            return prepare(check(value), message)

        return send_bytes
    lend = lender(annotation)
    if lend is not None:
        return lambda value, message: prepare(lend(check(value)), message)
    return lambda value, message: prepare(check(value), message)
