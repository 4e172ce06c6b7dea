"""A man in the middle over shm: each end has a control segment of the wire's as its peer's, and the wire copies.

A sender finds the receiver's posted slots in the wire's copy of the receiver's segment, and lands its message there:
the bytes are in the slot, or with the copy's entry, but the receiver doesn't see them until the wire marks the
receiver's own segment. See
cpp/provider/shm/wire.h and control_segment.h. The sockets are the wire's, so each end takes the wire's process for its
peer, and ordinary memory is staged through the pool.
"""

import contextlib
import fcntl
import mmap
import os
import select
import socket
import struct
import threading
from collections import deque

from impostor import wake_and_close
from shm_peer import (
    ENTRIES_OFFSET,
    ENTRY_BYTES,
    EXPOSURES,
    F_ADD_SEALS,
    HEADER,
    PREAMBLE,
    SETUP,
    SETUP_NOTICE,
    SIZE_SEALS,
    SLAB,
)

from .gate import CLIENT, SERVER, Gate, message_name

DOORBELL, GOODBYE = 5, 6
SLAB_NOTICE = struct.Struct("<IIQQ")  # id, writable, address, length
ENTRY = struct.Struct("<IIQII")  # state, slab, offset, posted bytes, landed bytes; then a short message
IN_ENTRY = 1 << 31  # beside landed bytes
EXPOSURE_BYTES = 32
WITHDRAWN, POSTED, LANDED = 0, 1, 3  # the last two with four times the receive's number
IDLE_SECONDS = 0.0003


class _End:
    """What the wire knows of one end: its socket, its segment, the copy of that which its peer has, its files."""

    def __init__(self, name: str, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.name, self.socket = name, connection
        self.received = b""
        self.fds: deque[int] = deque()
        self.preamble_seen = self.over = False
        self.real: mmap.mmap | None = None
        self.copy: mmap.mmap | None = None
        self.entries = self.posted = self.landed = (
            0  # receives copied to the peer, and those that have landed
        )
        self._looks = 0
        self.slabs: dict[int, mmap.mmap] = {}

    def close(self) -> None:
        wake_and_close(self.socket)
        for fd in self.fds:
            os.close(fd)
        for mapping in (self.real, self.copy, *self.slabs.values()):
            if mapping is not None:
                mapping.close()

    def adopt(self, payload: bytes) -> int:
        """Maps the end's segment; returns a descriptor of the copy that its peer gets."""
        self.entries, _, size, *_ = SETUP_NOTICE.unpack(payload)
        fd = self.fds.popleft()
        self.real = mmap.mmap(fd, size)
        os.close(fd)
        copy = os.memfd_create("wire", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(copy, size)
        fcntl.fcntl(copy, F_ADD_SEALS, SIZE_SEALS)
        self.copy = mmap.mmap(copy, size)
        return copy

    def adopt_slab(self, payload: bytes) -> int:
        number, writable, _, length = SLAB_NOTICE.unpack(payload)
        fd = self.fds.popleft()
        if writable:  # where it receives
            self.slabs[number] = mmap.mmap(fd, length)
        return fd

    def _at(self, sequence: int) -> int:
        return ENTRIES_OFFSET + sequence % self.entries * ENTRY_BYTES

    def show_receives(self) -> None:
        """Copies newly posted receives to where the peer looks for them."""
        if self.real is None or self.copy is None:
            return
        while True:
            at = self._at(self.posted)
            entry = ENTRY.unpack_from(self.real, at)
            if entry[0] != self.posted * 4 + POSTED:
                return
            self.copy[at + 4 : at + ENTRY.size] = self.real[at + 4 : at + ENTRY.size]
            struct.pack_into("<I", self.copy, at, entry[0])
            self.posted += 1

    def show_exposures(self) -> None:
        """Copies the table of what the peer may read."""
        assert self.real is not None
        assert self.copy is not None
        begin = ENTRIES_OFFSET + self.entries * ENTRY_BYTES
        end = begin + EXPOSURES * EXPOSURE_BYTES
        self.copy[begin:end] = self.real[begin:end]

    def next_landed(self) -> memoryview | None:
        """The bytes of the next message for this end, where they are."""
        if self.copy is None or self.entries == 0:
            return None
        at = self._at(self.landed)
        state, slab, offset, _, length = ENTRY.unpack_from(self.copy, at)
        if state != self.landed * 4 + LANDED:
            return None
        if length & IN_ENTRY:
            return memoryview(self.copy)[at + ENTRY.size :][: length - IN_ENTRY]
        return memoryview(self.slabs[slab])[offset : offset + length]

    def deliver(self, length: int) -> None:
        """Has the end see the message."""
        assert self.real is not None
        assert self.copy is not None
        at = self._at(self.landed)
        if ENTRY.unpack_from(self.copy, at)[-1] & IN_ENTRY:
            begin = at + ENTRY.size
            self.real[begin : begin + length] = self.copy[begin : begin + length]
            length |= IN_ENTRY
        if struct.unpack_from("<I", self.real, at)[0] == self.landed * 4 + POSTED:  # else it has withdrawn it
            struct.pack_into("<I", self.real, at + ENTRY.size - 4, length)
            struct.pack_into("<I", self.real, at, self.landed * 4 + LANDED)
        self.landed += 1

    def ring(self, delivered: bool) -> None:
        """Wakes the end if it sleeps over a message; looks again later, as it may be falling asleep."""
        self._looks = 3 if delivered else max(0, self._looks - 1)
        if self._looks and self.real is not None and self.real[0]:
            self.real[0] = 0
            with contextlib.suppress(BlockingIOError):  # then it has something to read
                self.send(HEADER.pack(DOORBELL, 0, 0))

    def receive(self) -> bool:
        """Reads what is on its socket; False if that is nothing."""
        try:
            data, fds, _, _ = socket.recv_fds(self.socket, 65536, 16)
        except BlockingIOError:
            return False
        except ConnectionError:  # it has closed, and left something unread
            data, fds = b"", []
        self.fds.extend(fds)
        self.received += data
        self.over = self.over or not data
        return bool(data)

    def send(self, data: bytes, fd: int = -1) -> None:
        """What has gone hears nothing more; what it said before is still to be carried."""
        try:
            if fd >= 0:
                socket.send_fds(self.socket, [data], [fd])
            else:
                self.socket.send(data)
        except ConnectionError:
            self.over = True
        finally:
            if fd >= 0:
                os.close(fd)

    def kind_of_notice(self) -> int | None:
        """Of the next whole one."""
        skip = 0 if self.preamble_seen else len(PREAMBLE)
        if len(self.received) < skip + HEADER.size:
            return None
        kind, _, length = HEADER.unpack_from(self.received, skip)
        return int(kind) if len(self.received) >= skip + HEADER.size + length else None

    def take_notice(self) -> tuple[bytes, bytes]:
        """The next whole one, and its payload; the preamble goes with the first."""
        skip = 0 if self.preamble_seen else len(PREAMBLE)
        begin = skip + HEADER.size
        end = begin + HEADER.unpack_from(self.received, skip)[2]
        whole, self.received = self.received[:end], self.received[end:]
        self.preamble_seen = True
        return whole, whole[begin:]


class ShmWire:
    """Listens for clients, and leads each to the server at ``target``."""

    def __init__(self, gate: Gate, folder: str) -> None:
        self._gate = gate
        self.target = ""
        self._pairs: list[tuple[_End, _End]] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{folder}/wire.sock")
        self._listener.listen(64)
        self.address = f"shm://{folder}/wire.sock"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, reset: bool = False) -> None:
        """End all connections; there is no RST on a Unix socket."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                end.over = True
                with contextlib.suppress(OSError):
                    end.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        wake_and_close(self._listener)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(self.target.removeprefix("shm://"))
            except OSError:
                wake_and_close(client, server)
                continue
            pair = (_End(CLIENT, client), _End(SERVER, server))
            self._pairs.append(pair)
            threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, client: _End, server: _End) -> None:
        """Copies back and forth until either end has gone."""
        ways = ((client, server), (server, client))
        try:
            while not (client.over or server.over):
                busy = False
                for source, sink in ways:
                    busy |= self._carry_notices(source, sink)
                for source, sink in ways:
                    source.show_receives()
                    busy |= self._carry_messages(source, sink)
                if not busy:
                    select.select([client.socket, server.socket], [], [], IDLE_SECONDS)
            for source, sink in ways:
                self._carry_notices(source, sink)
                self._carry_messages(source, sink)
        except OSError:
            pass
        finally:
            client.close()
            server.close()

    def _carry_messages(self, source: _End, sink: _End) -> bool:
        """Delivers what the source has landed for the sink."""
        some = False
        while (slot := sink.next_landed()) is not None:
            # The files that a message refers to are announced before it.
            self._carry_notices(source, sink, goodbye=False)
            message = bytes(slot)
            passed = self._gate.passes(source.name, message_name(message), message)
            if passed is not message:
                slot[: len(passed)] = passed
            slot.release()
            source.show_receives()
            source.show_exposures()
            sink.deliver(len(passed))
            some = True
        sink.ring(some)
        return some

    def _carry_notices(self, source: _End, sink: _End, goodbye: bool = True) -> bool:
        """Passes on what there is on the source's socket; a goodbye goes after the messages before it."""
        some = False
        while source.receive():
            some = True
        while (kind := source.kind_of_notice()) is not None:
            if kind == GOODBYE:
                if not goodbye:
                    break
                self._carry_messages(source, sink)
            whole, payload = source.take_notice()
            fd = -1
            if kind == SETUP:
                fd = source.adopt(payload)
            elif kind == SLAB:
                fd = source.adopt_slab(payload)
            source.show_receives()  # those that it may speak of are posted before it does
            _send(sink, whole, fd)
        return some


def _send(sink: _End, data: bytes, fd: int) -> None:
    """The whole frame, which is small, or nothing of it goes into the socket at a time."""
    if not select.select([], [sink.socket], [], 5.0)[1]:
        raise TimeoutError("an end reads nothing from its socket")
    sink.send(data, fd)
