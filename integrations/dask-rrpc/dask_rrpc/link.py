"""The service that comms are streams of, and the connections that a process's comms share."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterable, Callable
from functools import partial
from typing import Any
from weakref import WeakSet, WeakValueDictionary

from distributed.core import Status
from distributed.worker import Worker
from tornado.ioloop import PeriodicCallback

import rrpc
import rrpc.aio

__all__ = ["Frames", "Links", "share_pool", "shared_client"]

Frames = list[memoryview]
CROWDED = 0.5
"""Part of the workers' memory limits from which on free pool memory isn't kept; Dask spills from 0.6 on."""

_lock = threading.Lock()
_clients: WeakValueDictionary[tuple[int, str, str], LinksClient] = WeakValueDictionary()
_workers: WeakSet[Worker] = WeakSet()


@rrpc.service(name="dask.Links")
class Links:
    """Gives each stream that a client opens to ``accept``."""

    def __init__(self, accept: Callable[[rrpc.aio.ServerStream[Frames, Frames]], None]) -> None:
        self._accept = accept

    @rrpc.method
    async def link(self, stream: rrpc.aio.ServerStream[Frames, Frames]) -> None:
        """Opens a comm, which lasts until either end closes it."""
        stream.detach()
        self._accept(stream)


class _Link(rrpc.aio.DuplexStreamMethod[Frames, Frames]):
    rpc_name = "dask.Links.link"

    def __call__(self, stream: AsyncIterable[Frames]) -> rrpc.aio.ResponseStream[Frames]:
        return self._exchange(stream, None)


class LinksClient(rrpc.aio.Client):
    """The client of ``Links``."""

    link = rrpc.stub(_Link)

    def __del__(self) -> None:
        self.close()


def shared_client(address: str, options: dict[str, Any]) -> LinksClient:
    """Returns the client of ``rrpc://host:port`` that comms share; its connection ends with the last of them."""
    key = os.getpid(), address, repr(options)  # a forked process doesn't use its parent's connections
    with _lock:
        client = _clients.get(key)
        if client is None:
            client = _clients[key] = LinksClient(address, **options)
    return client


def share_pool(worker: Worker) -> None:
    """Bounds the process's pool by the memory limits of its workers, and has it give way to their data."""
    _workers.add(worker)
    limits = [each.memory_manager.memory_limit for each in _workers if each.status is not Status.closed]
    if all(limits):
        rrpc.set_pool_limit(sum(limits))
        worker.periodic_callbacks["rrpc-pool"] = PeriodicCallback(partial(_relieve, worker, sum(limits)), 100)


def _relieve(worker: Worker, limit_bytes: int) -> None:
    """Gives free pool memory back where Dask would soon spill or pause, which it does by resident memory."""
    if worker.monitor.get_process_memory() > CROWDED * limit_bytes:
        rrpc.trim()
