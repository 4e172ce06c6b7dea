"""How calls begin in a loop."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from rrpc.calls import memory_of, plain_connection
from rrpc.codec import decode
from rrpc.context import current
from rrpc.errors import Unavailable
from rrpc.metadata import MetadataLike
from rrpc.service import OutSpec

from .future import Future
from .loop import running_driver

if TYPE_CHECKING:
    from rrpc.client import Untyped

    from .client import Client
    from .stubs import UnaryMethod

__all__ = ["start_method", "start_untyped"]


def start_method(
    stub: UnaryMethod[Any],
    arguments: tuple[Any, ...],
    timeout: float | None,
    metadata: MetadataLike | None,
    out: Any,
) -> Future[Any]:
    """Of a stub."""
    driver = running_driver()
    connection, encode, name, _, start = stub._plain
    around = current()
    wait = stub._timeout if timeout is None else timeout
    if connection is not stub._channel.ready or not (around is None or around.ended):
        return Future.of_chain(stub._course(arguments, wait, metadata, out), driver.loop)
    packed = stub._packed if metadata is None else stub._pack(metadata)
    payload, buffers = encode(arguments, None if out is None else OutSpec.of(out))
    future: Future[Any] = Future(loop=driver.loop)
    sizes = buffers.sizes
    if out is None and sizes is None:
        future.decode = stub._decode
    else:
        future.decode = partial(_decode_into, stub._decode, out, sizes)
    future.typed = stub._typed
    future.again = stub._course, arguments, None if wait is None else monotonic() + wait, metadata, out
    try:
        future.call = start(
            driver.queue, future, name, payload, buffers or None, memory_of(out), wait, packed
        )
    except Unavailable as error:
        if not error.not_executed:
            raise
        return Future.of_chain(stub._course(arguments, wait, metadata, out), driver.loop)
    driver.poll_soon()
    return future


def start_untyped(
    client: Client, request: Untyped, timeout: float | None, metadata: MetadataLike | None
) -> Future[Any]:
    """By name."""
    driver = running_driver()
    connection = plain_connection(client._channel, client._options)
    wait = client._options.timeout if timeout is None else timeout
    if connection is None:
        return Future.of_chain(client._course(request, wait, metadata), driver.loop)
    name, payload, buffers = request.encoded()
    out = request.out
    future: Future[Any] = Future(loop=driver.loop)
    future.decode = decode if out is None else partial(_decode_into, decode, out)
    future.again = client._course, request, None if wait is None else monotonic() + wait, metadata
    try:
        future.call = connection.core.start_in_loop(
            driver.queue, future, name, payload, buffers, memory_of(out), wait, client._pack(metadata)
        )
    except Unavailable as error:
        if not error.not_executed:
            raise
        return Future.of_chain(client._course(request, wait, metadata), driver.loop)
    driver.poll_soon()
    return future


def _decode_into(decode: Any, out: Any, *rest: Any) -> Any:
    *sizes, payload, blocks = rest
    return decode(payload, blocks, out, *sizes)
