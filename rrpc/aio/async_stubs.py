"""Base class of the methods without streams in generated asyncio clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from rrpc._client import stubs
from rrpc.errors import RpcError, goes_elsewhere
from rrpc.metadata import MetadataLike

if TYPE_CHECKING:
    from rrpc._call.outgoing import Prepared

    from .async_client import Client
    from .async_future import Future

__all__ = ["UnaryMethod"]

_R = TypeVar("_R")


class UnaryMethod(stubs.UnaryMethod[_R]):
    """The base of a generated asyncio client's methods: as ``rrpc.UnaryMethod``, to be awaited."""

    _is_async = True

    def __init__(self, client: Client) -> None:
        from .start_call import start

        super().__init__(client)
        self._begin: Callable[[Prepared], Future[_R]] = start

    def _start(  # type: ignore[override]
        self,
        arguments: tuple[Any, ...],
        timeout: float | None,
        metadata: MetadataLike | None = None,
        out: Any = None,
    ) -> Future[_R]:
        return self._begin(self._prepare(arguments, timeout, metadata, out))

    _call = _start  # type: ignore[assignment]

    def _otherwise(  # type: ignore[override]
        self, error: RpcError, arguments: tuple[Any, ...], left: float | None, metadata: MetadataLike | None
    ) -> Future[_R]:
        """Makes the call of a ``DirectMethod`` that failed with ``error`` elsewhere, where that is right."""
        if not goes_elsewhere(error):
            try:
                raise self._typed(error) from None
            finally:
                del error  # what is raised knows this frame
        from .start_call import start_course

        return start_course(self.within(arguments, left, metadata).course())
