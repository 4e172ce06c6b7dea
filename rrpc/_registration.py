"""The one registration point: gives lower rooms what they use and only upper rooms can define.

A room of rrpc imports only rooms that stand before it in the list of ``tools/check_layers.py``. A handler's context
makes clients. A blocking server runs async handlers in event loops, and has built-in services, whose stubs are
generated code that imports ``rrpc`` itself. These go the other way, through ``rrpc._call.registry``. The core in C++
gets the functions that make its errors and pack its metadata. ``rrpc`` imports this module once, after everything
else.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import environ
from typing import Any

from . import _core
from ._call import registry
from ._call.status import from_status
from ._client.array_checks import check_arrays
from .metadata import pack


class _Upper:
    """The upper rooms, each imported when it is first needed."""

    def client_over(self, core: _core.Client, cls: type[Any] | None, end: float | None) -> Any:
        from ._channel.peer_channel import PeerChannel
        from ._client.blocking_guard import loop_here

        if cls is None:
            from . import aio
            from ._client.client import Client

            running = loop_here()
            cls = Client if running is None or running() is None else aio.Client
        return cls(PeerChannel(core, end))

    def builtin_services(self, server: Any, workers: int) -> Sequence[object]:
        from .std.builtin_services import builtin

        return builtin(server, workers)

    def async_handlers(self, *parts: Any) -> Any:
        from .aio.loop_thread import LoopThread

        return LoopThread(*parts)

    def run_in_loop(self, handler: Any) -> None:
        from .aio.sync_handlers import to_loop

        to_loop(handler)


_core.set_error_factory(from_status)
_core.set_metadata_packer(pack)
registry.register(_Upper())
if environ.get("RRPC_CHECK_ARRAYS", "0") not in ("", "0"):
    check_arrays()
