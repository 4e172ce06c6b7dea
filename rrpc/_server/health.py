"""Whether a server's services take calls, as the application says."""

# Any thread may call it: handlers, the thread that drains, and workers that answer `rrpc.Health`. Each field changes
# by one operation of a dict or list, without a lock.

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rrpc.errors import NotFound


class Health:
    """The state of each of a server's services: they serve until the application or a shutdown says otherwise.

    A caller asks with ``rrpc.std.HealthClient``; what is set here refuses no call.
    """

    def __init__(self, services: Iterable[str]) -> None:
        self._serving = dict.fromkeys(services, True)
        self._draining = False
        # By keys of their own: clients decide how many there are, and each goes without a search.
        self._watchers: dict[object, Callable[[], object]] = {}

    def set(self, service: str, serving: bool) -> None:
        """Says whether a service can do its work.

        Args:
            service: Its name.
            serving: Whether it can.

        Raises:
            NotFound: The server has no service of this name.
        """
        self._known(service)
        self._serving[service] = serving
        self._tell()

    def serving(self, service: str = "") -> bool:
        """Returns whether a service serves or, with no name, whether all do. While the server drains none does."""
        if service:
            self._known(service)
        states = [self._serving[service]] if service else self._serving.values()
        return not self._draining and all(states)

    def drain(self) -> None:
        """Makes all services answer NOT_SERVING from now on."""
        self._draining = True
        self._tell()

    @property
    def draining(self) -> bool:
        """Whether the server takes no more calls."""
        return self._draining

    @contextmanager
    def watching(self, changed: Callable[[], object]) -> Iterator[None]:
        """Calls ``changed()`` after each possible change of a state, within a ``with`` block."""
        key = object()
        self._watchers[key] = changed
        try:
            yield
        finally:
            del self._watchers[key]

    def _tell(self) -> None:
        # Copied, as a watcher may leave while others are told.
        for changed in self._watchers.copy().values():
            changed()

    def _known(self, service: str) -> None:
        if service not in self._serving:
            raise NotFound(f"there is no service {service[:80]!r} here; there is {', '.join(self._serving)}")
