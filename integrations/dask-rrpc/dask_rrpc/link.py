"""What travels: each comm is a stream of frames both ways, of the service ``dask.Links``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.config
from dask.utils import parse_timedelta

import rrpc
import rrpc.aio

__all__ = ["Frames", "Links", "options"]

Frames = list[memoryview]


@rrpc.service(name="dask.Links")
class Links:
    """Gives each stream that comes to ``accept``."""

    def __init__(self, accept: Callable[[rrpc.aio.ServerStream[Frames, Frames]], None]) -> None:
        self._accept = accept

    @rrpc.method
    async def link(self, stream: rrpc.aio.ServerStream[Frames, Frames]) -> None:
        """A comm, until either end closes it."""
        stream.detach()
        self._accept(stream)


def options(server: bool = False) -> dict[str, Any]:
    """Of clients or servers: those under ``distributed.comm.rrpc`` in Dask's configuration."""
    given = dict(dask.config.get("distributed.comm.rrpc", {}))
    if not server:
        given.setdefault(
            "connect_timeout", parse_timedelta(dask.config.get("distributed.comm.timeouts.connect"))
        )
    return {name.replace("-", "_"): value for name, value in given.items()}
