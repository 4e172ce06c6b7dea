"""RPC for Python over RDMA: small calls as messages, large arrays by remote read.

Decorate a class with ``service`` and its methods with ``method``, serve it with ``rrpc-serve`` or
``Server``, generate a typed client with ``rrpc-gen`` or call by name with ``connect``.
"""

from collections.abc import Sequence
from os import environ as _environ
from typing import TYPE_CHECKING, Any

from . import _core, aio, interceptors
from .array_checks import check_arrays
from .bulk import empty, prefault_pool, set_pool_idle_timeout, set_pool_limit, snapshot, trim, zeros
from .channel import Backoff, Channel, Ejection, register_resolver
from .client import Client, connect
from .codec import Record, copies, set_device_tensors
from .codec import use_allocator as _use_allocator
from .context import Context, attached, context, detached
from .context import use_client as _use_client
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
from .futures import Future
from .health import Health
from .interceptors import ClientInterceptor, ServerInterceptor
from .metadata import Metadata, MetadataLike
from .metadata import pack as _pack_metadata
from .outgoing_streams import open_stream
from .retry import HedgingPolicy, RetryBudget, RetryPolicy
from .server import Server, serve
from .server import use_async as _use_async
from .server import use_builtin as _use_builtin
from .service import AnnotationError, error, method, service
from .status import from_status as _from_status
from .stream_stubs import DuplexStreamMethod, RequestStreamMethod, ResponseStreamMethod
from .streams import DuplexStream, RequestStream, ResponseStream, ServerStream
from .stubs import UnaryMethod, stub
from .types import Shape, Sized, f32, i8, i16, i32, i64, u8, u16, u32, u64

if TYPE_CHECKING:
    from .batching import batch_sizes, batched
    from .tracing import Trace

__all__ = [
    "Aborted",
    "AddressInUse",
    "AlreadyExists",
    "AnnotationError",
    "Backoff",
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


def stats() -> dict[str, int]:
    """Returns counters of what this process has moved and copied since it started.

    Besides the core's counters there are Python's. ``packs`` and ``bytes_packed`` count arrays that weren't
    contiguous and were packed before sending. ``unpacks`` and ``bytes_unpacked`` count large bytes,
    bytearrays and array.arrays that were copied out of the landing memory, and arrays that JAX copied.
    ``device_copies`` and ``bytes_from_devices`` count tensors (see ``set_device_tensors``). ``bytes_copied``
    is the sum of the core's copies and these.
    """
    counts = _core.stats()
    ours = copies()
    copied = ours["bytes_packed"] + ours["bytes_unpacked"] + ours["bytes_from_devices"]
    return counts | ours | {"bytes_copied": counts.get("bytes_copied", 0) + copied}


def trace() -> "Trace":
    """In a ``with`` statement: collects the calls made there, with what each did when, at both ends.

    ``print(trace)`` shows them, ``trace.save("calls.json")`` writes what https://ui.perfetto.dev opens.
    """
    from .tracing import Trace

    return Trace()


def transports() -> dict[str, str]:
    """The address schemes: "" for one that can be used here, else the reason why it can't."""
    return _core.transports()


def adapters() -> list[dict[str, str]]:
    """The InfiniBand, RoCE and iWARP adapters of this machine: an entry for each port, as ``rrpc-info`` shows it.

    One that can't be used has the reason under ``why_not``. Empty too where ``transports()["verbs"]`` has a reason.
    """
    return _core.adapters()


def _version() -> str:
    """From the name of the installed metadata's folder: importlib.metadata costs more than all else here."""
    import os
    import sys

    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:  # a zip file, or not there
            continue
        for name in names:
            if name.startswith("rrpc_rdma-") and name.endswith(".dist-info"):
                return name[len("rrpc_rdma-") : -len(".dist-info")]
    return "0+uninstalled"  # a checkout, built in place


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    import sys

    if name in ("batch_sizes", "batched"):  # they need asyncio
        from . import batching

        return getattr(batching, name)
    # With the name and the module, Python's traceback says "Did you mean: ...".
    raise AttributeError(f"module 'rrpc' has no attribute {name!r}", name=name, obj=sys.modules[__name__])


def _client_of(core: _core.Client, cls: type[Any] | None) -> Any:
    from .channel.peer import PeerChannel
    from .loops import loop_here

    if cls is None:
        running = loop_here()
        cls = Client if running is None or running() is None else aio.Client
    return cls(PeerChannel(core))


def _builtin(server: Server, workers: int) -> Sequence[object]:
    from .std.server import builtin

    return builtin(server, workers)


def _async_lane(*parts: Any) -> Any:
    from .aio.thread import ThreadedLane

    return ThreadedLane(*parts)


def _to_loop(handler: Any) -> None:
    from .aio.plain import to_loop

    to_loop(handler)


# The one place where the layers that may not see each other are joined.
_core.set_error_factory(_from_status)
_core.set_metadata_packer(_pack_metadata)
_use_allocator(empty)
_use_builtin(_builtin)
_use_client(_client_of)
_use_async(_async_lane, _to_loop)
if _environ.get("RRPC_CHECK_ARRAYS", "0") not in ("", "0"):
    check_arrays()
