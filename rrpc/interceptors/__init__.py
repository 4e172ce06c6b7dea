"""Code that stands around calls, on either side: one definition for blocking calls, futures, asyncio and streams.

Ready-made: ``ClientLogging``, ``ServerLogging``, ``ClientToken``, ``ServerToken`` (with ``JwtTokens``), ``Retry``,
and in ``rrpc.interceptors.otel`` ``ClientSpans`` and ``ServerSpans``.
"""

from typing import TYPE_CHECKING, Any

from rrpc._call.steps import Sleep
from rrpc._channel.privacy import is_private

from .base import ClientInterceptor, Interceptor, ServerInterceptor, checked, links

if TYPE_CHECKING:
    from .call_logs import ClientLogging, ServerLogging
    from .jwt_tokens import JwtTokens
    from .retries import Retry
    from .tokens import ClientToken, ServerToken

__all__ = [
    "ClientInterceptor",
    "ClientLogging",
    "ClientToken",
    "Interceptor",
    "JwtTokens",
    "Retry",
    "ServerInterceptor",
    "ServerLogging",
    "ServerToken",
    "Sleep",
    "checked",
    "is_private",
    "links",
]

_WHERE = {
    "ClientLogging": "call_logs",
    "ServerLogging": "call_logs",
    "ClientToken": "tokens",
    "ServerToken": "tokens",
    "JwtTokens": "jwt_tokens",
    "Retry": "retries",
}


def __getattr__(name: str) -> Any:
    """The ready-made ones are imported when they are used."""
    import sys
    from importlib import import_module

    if name == "otel":
        return import_module(".otel", __name__)
    if name not in _WHERE:
        # With the name and the module, Python's traceback says "Did you mean: ...".
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__]
        )
    return getattr(import_module(f".{_WHERE[name]}", __name__), name)


def __dir__() -> list[str]:
    """Lists the names of the module, including those imported on first use."""
    return sorted({*globals(), *__all__})
