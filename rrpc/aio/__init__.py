"""asyncio: clients and servers for coroutines.

::

    async with AsyncNearestClient("rrpc://127.0.0.1:7471") as nearest:
        ids, distances = await nearest.search(queries, k=5, timeout=1.0)

    async with rrpc.aio.serve(Nearest(table)) as server:
        await server.wait()
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .server import Server, serve

__all__ = ["Server", "serve"]

# Generated modules name this one, also where nobody uses asyncio: that is imported when it is needed.
_LATER = {"Server": "server", "serve": "server"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'rrpc.aio' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f".{_LATER[name]}", __name__), name)
