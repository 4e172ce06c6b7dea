"""asyncio: clients and servers for coroutines.

::

    async with AsyncNearestClient("rrpc://127.0.0.1:7471") as nearest:
        ids, distances = await nearest.search(queries, k=5, timeout=1.0)

    async with rrpc.aio.serve(Nearest(table)) as server:
        await server.wait()
"""

# Loops and threads may share a client. All else belongs to the loop in which it was made: futures, streams, and a
# server with its async handlers.

from typing import TYPE_CHECKING, Any

from .async_client import Client, connect
from .async_stream_stubs import DuplexStreamMethod, RequestStreamMethod, ResponseStreamMethod
from .async_stubs import UnaryMethod

if TYPE_CHECKING:
    from .async_future import Future
    from .async_server import Server, serve
    from .async_server_stream import ServerStream
    from .async_streams import DuplexStream, RequestStream, ResponseStream, open_stream

__all__ = [
    "Client",
    "DuplexStream",
    "DuplexStreamMethod",
    "Future",
    "RequestStream",
    "RequestStreamMethod",
    "ResponseStream",
    "ResponseStreamMethod",
    "Server",
    "ServerStream",
    "UnaryMethod",
    "connect",
    "open_stream",
    "serve",
]

# Modules with generated clients import this one, used or not: what needs asyncio comes when it is asked for.
_STREAMS = ("DuplexStream", "RequestStream", "ResponseStream", "open_stream")
_LATER = {"Future": "async_future", "ServerStream": "async_server_stream"}
_LATER |= dict.fromkeys(("Server", "serve"), "async_server")
_LATER |= dict.fromkeys(_STREAMS, "async_streams")


def __getattr__(name: str) -> Any:
    import importlib
    import sys

    if name not in _LATER:
        # With the name and the module, Python's traceback says "Did you mean: ...".
        raise AttributeError(
            f"module 'rrpc.aio' has no attribute {name!r}", name=name, obj=sys.modules[__name__]
        )
    return getattr(importlib.import_module(f".{_LATER[name]}", __name__), name)


def __dir__() -> list[str]:
    """Lists the names of the module, including those imported on first use."""
    return sorted({*globals(), *__all__})
