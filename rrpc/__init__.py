"""RPC for Python over RDMA: small calls as messages, large arrays by remote read.

Decorate a class with ``service`` and its methods with ``method``, serve it with ``rrpc-serve`` or
``Server``, generate a typed client with ``rrpc-gen`` or call by name with ``connect``.
"""

from typing import TYPE_CHECKING, Any

from . import aio, interceptors
from ._call.context import Context, attached, context, detached
from ._call.peer import Peer
from ._call.retry import RetryBudget, RetryPolicy
from ._channel import Backoff, Channel, Ejection, register_resolver
from ._client.array_checks import check_arrays
from ._client.client import Client, connect
from ._client.futures import Future
from ._client.hedging import HedgingPolicy
from ._client.outgoing_stream import open_stream
from ._client.stream_stubs import DuplexStreamMethod, RequestStreamMethod, ResponseStreamMethod
from ._client.streams import DuplexStream, RequestStream, ResponseStream
from ._client.stubs import UnaryMethod, stub
from ._interface import AnnotationError, error
from ._interface.decorators import method, service
from ._server.authorization import Authorization
from ._server.health import Health
from ._server.server import Server, serve
from ._server.server_stream import ServerStream
from ._toplevel import adapters, stats, trace, transports
from ._toplevel import version as _version
from .codec import Record, set_device_tensors
from .errors import (
    Aborted,
    AddressInUse,
    AlreadyExists,
    Cancelled,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PermissionDenied,
    ProtocolError,
    RemoteError,
    ResourceExhausted,
    RpcError,
    StatusCode,
    Unauthenticated,
    Unavailable,
    Unimplemented,
    Unknown,
)
from .interceptors import ClientInterceptor, ServerInterceptor
from .memory import empty, like, prefault_pool, set_pool_idle_timeout, set_pool_limit, snapshot, trim, zeros
from .metadata import Metadata, MetadataLike
from .types import Borrowed, Shape, Sized, f32, i8, i16, i32, i64, u8, u16, u32, u64

if TYPE_CHECKING:
    from ._server.batching import batch_sizes, batched

__all__ = [
    "Aborted",
    "AddressInUse",
    "AlreadyExists",
    "AnnotationError",
    "Authorization",
    "Backoff",
    "Borrowed",
    "Cancelled",
    "Channel",
    "Client",
    "ClientInterceptor",
    "Context",
    "DataLoss",
    "DeadlineExceeded",
    "DuplexStream",
    "DuplexStreamMethod",
    "Ejection",
    "FailedPrecondition",
    "Future",
    "Health",
    "HedgingPolicy",
    "Internal",
    "InvalidArgument",
    "Metadata",
    "MetadataLike",
    "NotFound",
    "OutOfRange",
    "Peer",
    "PermissionDenied",
    "ProtocolError",
    "Record",
    "RemoteError",
    "RequestStream",
    "RequestStreamMethod",
    "ResourceExhausted",
    "ResponseStream",
    "ResponseStreamMethod",
    "RetryBudget",
    "RetryPolicy",
    "RpcError",
    "Server",
    "ServerInterceptor",
    "ServerStream",
    "Shape",
    "Sized",
    "StatusCode",
    "UnaryMethod",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "Unknown",
    "adapters",
    "aio",
    "attached",
    "batch_sizes",
    "batched",
    "check_arrays",
    "connect",
    "context",
    "detached",
    "empty",
    "error",
    "f32",
    "i8",
    "i16",
    "i32",
    "i64",
    "interceptors",
    "like",
    "method",
    "open_stream",
    "prefault_pool",
    "register_resolver",
    "serve",
    "service",
    "set_device_tensors",
    "set_pool_idle_timeout",
    "set_pool_limit",
    "snapshot",
    "stats",
    "stub",
    "trace",
    "transports",
    "trim",
    "u8",
    "u16",
    "u32",
    "u64",
    "zeros",
]

__version__: str


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    import sys

    if name in ("batch_sizes", "batched"):  # they need asyncio
        from ._server import batching

        return getattr(batching, name)
    # With the name and the module, Python's traceback says "Did you mean: ...".
    raise AttributeError(f"module 'rrpc' has no attribute {name!r}", name=name, obj=sys.modules[__name__])


# Tracebacks and pickles name them as users import them, wherever they stand.
AnnotationError.__module__ = Authorization.__module__ = Peer.__module__ = Record.__module__ = "rrpc"

# Last, as it sees all of the above.
from . import _registration as _registration  # noqa: E402
