"""Packers of msgpack, one for each thread: threads that share one wait for each other, or spoil each other's bytes."""

from __future__ import annotations

import threading

import msgpack

__all__: list[str] = []


class _Own(threading.local):
    def __init__(self) -> None:
        self.packer = msgpack.Packer()


own = _Own()
