"""asyncio: clients and servers for coroutines.

::

    async with AsyncNearestClient("rrpc://127.0.0.1:7471") as nearest:
        ids, distances = await nearest.search(queries, k=5, timeout=1.0)

    async with rrpc.aio.serve(Nearest(table)) as server:
        await server.wait()
"""

from typing import TYPE_CHECKING, Any

from .client import Client, connect
from .stubs import UnaryMethod

if TYPE_CHECKING:
    from .future import Future
    from .server import Server, serve

__all__ = ["Client", "Future", "Server", "UnaryMethod", "connect", "serve"]

# Modules with generated clients import this one, used or not: what needs asyncio comes when it is asked for.
_LATER = {"Future": "future", "Server": "server", "serve": "server"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'rrpc.aio' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f".{_LATER[name]}", __name__), name)
