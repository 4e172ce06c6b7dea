"""A man in the middle over an emulated adapter: the cable between two links, through a gate.

What one link sends comes to its tap, and what is sent to a tap arrives at its link: see RDMA_TAPS in tools/vm/rdma.sh.
"""

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from .gate import CLIENT, SERVER, Gate
from .rxe_packets import RxePackets
from .siw_packets import SiwPackets

_ALL_PROTOCOLS = 0x0003
_PACKET_IGNORE_OUTGOING = 23
_FRAME_BYTES = 1 << 17
_BUFFER_BYTES = 16 << 20
_LOOK_SECONDS = 0.5


class Packets(Protocol):
    """What a wire knows of the packets of one kind of adapter, of both directions."""

    def messages(self, frame: bytearray) -> list[tuple[str, slice]]:
        """Returns the messages that begin in a frame, by name and place; none of them twice."""

    def seal(self, frame: bytearray) -> None:
        """Makes a frame's sums right."""

    def passed(self, frame: bytearray) -> None:
        """The frame has gone on."""

    def resets(self) -> list[bytes]:
        """Returns frames that end the connections that have been seen: each goes to both ends."""


@dataclass(frozen=True)
class Cable:
    """Between two adapters of a kind: where the server listens, and how the client says which adapter is its own."""

    packets: Callable[[], Packets]
    server_tap: str
    client_tap: str
    listen: str
    client_options: str
    namespaces: dict[str, str]


CABLES = {
    "rxe": Cable(RxePackets, "va-tap", "vb-tap", "verbs://10.8.1.1:7471", "?device=rxb", {}),
    "siw": Cable(SiwPackets, "sva-tap", "svb-tap", "verbs://10.8.0.1:7471", "", {SERVER: "a", CLIENT: "b"}),
}


class PacketWire:
    """Passes on what two links send each other."""

    def __init__(self, gate: Gate, cable: Cable) -> None:
        self._gate = gate
        self._cable = cable
        self._packets = cable.packets()
        self._lock = threading.Lock()
        self._closed = False
        self.target = ""
        self._taps = {SERVER: _tap(cable.server_tap), CLIENT: _tap(cable.client_tap)}
        self._pumps = [
            threading.Thread(target=self._pump, args=ends, daemon=True)
            for ends in ((SERVER, CLIENT), (CLIENT, SERVER))
        ]
        for pump in self._pumps:
            pump.start()

    @property
    def address(self) -> str:
        """For clients."""
        return self.target + self._cable.client_options

    def cut(self, reset: bool = False) -> None:
        """End all connections, if the packets can: only TCP's can be ended by one who isn't an end."""
        with self._lock:
            for frame in self._packets.resets():
                for tap in self._taps.values():
                    tap.send(frame)

    def close(self) -> None:
        self._closed = True
        for pump in self._pumps:
            pump.join()
        for tap in self._taps.values():
            tap.close()

    def _pump(self, sender: str, receiver: str) -> None:
        while not self._closed:
            try:
                frame = bytearray(self._taps[sender].recv(_FRAME_BYTES))
            except TimeoutError:
                continue
            with self._lock:
                messages = self._packets.messages(frame)
            for name, place in messages or [
                ("", slice(0, 0))
            ]:  # a gate that passes nothing holds all packets
                frame[place] = self._gate.passes(sender, name, bytes(frame[place]))
            with self._lock:
                self._packets.seal(frame)
                self._taps[receiver].send(frame)
                self._packets.passed(frame)


def _tap(link: str) -> socket.socket:
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
    tap.setsockopt(263, _PACKET_IGNORE_OUTGOING, 1)  # SOL_PACKET
    tap.setsockopt(socket.SOL_SOCKET, 33, _BUFFER_BYTES)  # SO_RCVBUFFORCE
    tap.bind((link, _ALL_PROTOCOLS))
    tap.settimeout(_LOOK_SECONDS)
    return tap
