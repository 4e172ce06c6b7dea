"""The copies that Python makes, counted."""

from __future__ import annotations

from rrpc._fork import process_lock

__all__: list[str] = []

# Any thread may count. An addition to a dict's value isn't atomic.
_lock = process_lock()
_counts = {"packs": 0, "bytes_packed": 0, "unpacks": 0, "bytes_unpacked": 0}
_counts |= {"device_copies": 0, "bytes_from_devices": 0}


def count_pack(nbytes: int) -> None:
    """An array that wasn't contiguous was packed into one."""
    with _lock:
        _counts["packs"] += 1
        _counts["bytes_packed"] += nbytes


def count_device_copy(nbytes: int) -> None:
    """A tensor was copied from a device to the host."""
    with _lock:
        _counts["device_copies"] += 1
        _counts["bytes_from_devices"] += nbytes


def count_unpack(nbytes: int) -> None:
    """A large buffer that arrived was copied, into bytes or an array of JAX for example."""
    with _lock:
        _counts["unpacks"] += 1
        _counts["bytes_unpacked"] += nbytes


def snapshot() -> dict[str, int]:
    with _lock:
        return dict(_counts)
