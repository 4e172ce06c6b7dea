"""Calls with streams of items."""

from .attempts import Attempts
from .calls import DuplexStream, RequestStream, ResponseStream
from .opened import Opened
from .receiving import Pace, received
from .server_stream import ServerEnd, ServerStream
from .serving import ServedStream, ServedStreams
from .waker import Waker

__all__ = [
    "Attempts",
    "DuplexStream",
    "Opened",
    "Pace",
    "RequestStream",
    "ResponseStream",
    "ServedStream",
    "ServedStreams",
    "ServerEnd",
    "ServerStream",
    "Waker",
    "received",
]
