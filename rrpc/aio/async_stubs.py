"""Base class of the methods without streams in generated asyncio clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from rrpc._channel import Connection
from rrpc._client import stubs
from rrpc.metadata import MetadataLike

if TYPE_CHECKING:
    from .async_client import Client
    from .async_future import Future

__all__ = ["UnaryMethod"]

_R = TypeVar("_R")


class UnaryMethod(stubs.UnaryMethod[_R]):
    """The base of a generated asyncio client's methods: as ``rrpc.UnaryMethod``, to be awaited."""

    def __init__(self, client: Client) -> None:
        from .start_call import start_method

        super().__init__(client)
        self._begin: Callable[..., Future[_R]] = start_method

    def direct(self) -> Any:
        """Returns itself: its calls are begun in a loop, and don't wait."""
        return self

    def _start(  # type: ignore[override]
        self,
        arguments: tuple[Any, ...],
        timeout: float | None,
        metadata: MetadataLike | None = None,
        out: Any = None,
    ) -> Future[_R]:
        return self._begin(self, arguments, timeout, metadata, out)

    _call = _start  # type: ignore[assignment]

    def _bind(self, connection: Connection) -> tuple[Any, ...]:
        _, encode, name, _, _ = super()._bind(connection)
        bound = (connection, encode, name, None, connection.core.start_in_loop)
        if self._options.plain:
            self._plain = bound
        return bound
