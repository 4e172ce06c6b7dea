"""Values that can't be sent."""

from __future__ import annotations

from rrpc import _core
from rrpc.errors import InvalidArgument


class Refused(Exception):
    """A value can't be sent: the reason, and the path to it (outermost step first)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []


def refusal(refused: Refused, what: str) -> InvalidArgument:
    """The error for the user; ``what`` names the value, for example ``argument 'queries'``."""
    steps = refused.path if len(refused.path) <= 12 else [*refused.path[:10], "...", refused.path[-1]]
    return InvalidArgument(f"{what}{''.join(steps)}: {refused.reason}")


def scanned(payload: bytes) -> bytes:
    """Gives a payload that receivers take."""
    # A shorter payload can't have more objects than receivers take, as each has a byte at least.
    if len(payload) > _core.OBJECTS_ALWAYS:
        try:
            _core.scan_payload(payload)
        except ValueError as error:
            raise Refused(str(error)) from None
    return payload
