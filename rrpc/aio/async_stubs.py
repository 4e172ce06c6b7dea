"""Base class of the methods without streams in generated asyncio clients."""

# Called in the thread of a running loop. The core makes plain calls without coming here.

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from rrpc._client import stubs
from rrpc.metadata import MetadataLike

if TYPE_CHECKING:
    from rrpc._call.outgoing import Prepared

    from .async_client import Client
    from .async_future import Future

_R = TypeVar("_R")


class UnaryMethod(stubs.UnaryMethod[_R]):
    """The base of a generated asyncio client's methods: as ``rrpc.UnaryMethod``, to be awaited."""

    _is_async = True

    def __init__(self, client: Client) -> None:
        from .start_call import start, start_course

        super().__init__(client)
        self._begin: Callable[[Prepared], Future[_R]] = start
        self._go_course = start_course

    def _start(  # type: ignore[override]
        self,
        arguments: tuple[Any, ...],
        timeout: float | None,
        metadata: MetadataLike | None = None,
        out: Any = None,
    ) -> Future[_R]:
        return self._begin(self._prepare(arguments, timeout, metadata, out))

    _call = _start  # type: ignore[assignment]
