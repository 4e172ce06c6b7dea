"""What a workload asks of every peer."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Mode = Literal["echo", "send", "fetch", "aio"]


def touched(nbytes: int) -> Floats:
    """An ordinary float32 array whose pages are all present."""
    array = np.empty(nbytes // 4, np.float32)
    array[:] = np.arange(array.size, dtype=np.float32)
    return array


class Connection(ABC):
    """One client's connection. Which calls it can make may depend on the mode it was opened in."""

    @abstractmethod
    def echo(self, data: bytes) -> bytes: ...

    @abstractmethod
    def pipeline(self, data: bytes, window: int, calls: int) -> None:
        """Echo ``calls`` times with ``window`` in flight."""

    def array(self, nbytes: int) -> Floats:
        """An array to send, of the kind under test, touched."""
        return touched(nbytes)

    @abstractmethod
    def send(self, array: Floats) -> int:
        """Pass the array as an argument; the server answers with the bytes it got."""

    @abstractmethod
    def fetch(self, nbytes: int) -> Floats:
        """Have the array that the server holds as a result."""

    def ways(self) -> dict[str, Callable[[bytes], bytes]]:
        """More ways to echo, where the peer has them."""
        raise NotImplementedError

    def receive(self, data: bytes, count: int) -> int:
        """Have so many items as a stream; how many came."""
        raise NotImplementedError

    def receive_records(self, count: int) -> int | None:
        """The same with small records, where the peer has those."""
        return None

    def stream(self, data: bytes, count: int) -> int:
        """Send so many items as a stream; how many the server had."""
        raise NotImplementedError

    def fetch_each(self, nbytes: int, count: int) -> int:
        """Have the server's array as each item of a stream; the bytes in all."""
        raise NotImplementedError

    def lending(self, nbytes: int) -> dict[str, Callable[[], None]]:
        """Calls with an array of this size that isn't copied: as argument, as result."""
        raise NotImplementedError

    def trace(self, data: bytes) -> None:
        """Echo once and have noted down where the time goes, where the peer can."""
        raise NotImplementedError

    def server_pid(self) -> int | None:
        """The process that answers, where it isn't the one that the benchmark started."""
        return None

    def bytes_copied(self) -> int | None:
        """Bytes that both ends have moved so far, each copy counted; None where it isn't counted."""
        return None

    @abstractmethod
    def close(self) -> None: ...


class AsyncConnection(ABC):
    """One client's connection, in asyncio."""

    @abstractmethod
    async def echo(self, data: bytes) -> bytes: ...

    @abstractmethod
    async def send(self, array: Floats) -> int:
        """Returns the number of bytes that the server has of it."""

    @abstractmethod
    async def close(self) -> None: ...


class Peer(ABC):
    """A named way to serve and to connect."""

    small_calls = True
    arrays = True
    many_connections = True
    asyncio = False
    streams = False

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def missing(self) -> str:
        """Why it can't run here; empty where it can."""

    def server_arguments(self, mode: Mode) -> list[str]:
        """Python's arguments for the server process, whose first line ends with its address."""
        return ["-m", "bench.peers", self.name, mode]

    def serve(self, mode: Mode, ready: Callable[[str], None]) -> None:
        """Serve until killed; ``ready`` is called with the address."""
        raise NotImplementedError(self.name)

    @abstractmethod
    def connect(self, address: str, mode: Mode) -> Connection: ...

    async def connect_async(self, address: str) -> AsyncConnection:
        """To a server in mode "aio", whose handlers are coroutines too."""
        raise NotImplementedError(self.name)


class WarmArrays:
    """The server's arrays to be fetched: made and touched once per size."""

    def __init__(self) -> None:
        self._by_size: dict[int, Floats] = {}

    def __getitem__(self, nbytes: int) -> Floats:
        if nbytes not in self._by_size:
            self._by_size[nbytes] = touched(nbytes)
        return self._by_size[nbytes]
