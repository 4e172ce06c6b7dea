"""Code that stands around calls, on either side: one definition for blocking calls, futures, asyncio and streams."""

from .base import ClientInterceptor, Interceptor, ServerInterceptor, Sleep, checked, links
from .chain import Chain, drive, drive_async
from .hooks import StreamHooks

__all__ = [
    "Chain",
    "ClientInterceptor",
    "Interceptor",
    "ServerInterceptor",
    "Sleep",
    "StreamHooks",
    "checked",
    "drive",
    "drive_async",
    "links",
]
