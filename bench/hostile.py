"""Clients that try to take what others need: ``python -m bench.hostile ATTACK TCP_ADDRESS SHM_PATH``.

Each attack says "attacking" once it stands, and goes on until its standard input is closed. It speaks the wire
format by hand (tests/helpers/raw_peer.py), within a budget of processor time: what is measured is what the server lets
it take, not how two processes share a core.
"""

import array
import contextlib
import fcntl
import mmap
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable

from bench.settings import MIB, ROOT

sys.path.append(str(ROOT / "tests" / "helpers"))

import raw_peer as wire

PAUSE_S = 0.02
PATIENCE_S = 0.5  # for a reply
GIB = 1 << 30
KEY = 0x1234
ITEM, ITEM_BULK = 6, 7
CLIENT_STREAMS, SERVER_STREAMS = 2, 4
ITEM_BULK_BODY = struct.Struct("<QQQIIQ")  # call id, address, length, rkey, sequence, item bytes


class Attacker(wire.RawPeer):
    """A connection that answers PINGs, so that it counts as alive, and nothing else."""

    def __init__(self, address: str, **hello: bytes) -> None:
        super().__init__(address, greet=False)
        self.send(wire.setup())
        self.read_frame()
        self.send(wire.hello(**{"window": b"1024,8388608", **hello}))
        self.read_message()
        self.data, self.control = 1, 0  # HELLO
        self.gives_credits = True

    def say(self, kind: int, body: bytes = b"") -> None:
        """Sends a message; grants what has come so far, if it gives credits at all."""
        self.send(wire.message(kind, body, data=self.data if self.gives_credits else 1, control=self.control))

    def call(
        self, call_id: int, method: str, *args: object, descriptors: bytes = b"", flags: int = 0
    ) -> None:
        self.say(wire.CALL, wire.request(call_id, method, *args, descriptors=descriptors, flags=flags))

    def attend(self, seconds: float) -> None:
        """Reads for a while what the server says. Raises EOFError or ConnectionError when it has been cut off."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not select.select([self.socket], [], [], left)[0]:
                return
            self._hear()

    def attend_reply(self) -> bool:
        """Reads until a call was answered; False where none is for a while, as the server waits for the client."""
        while select.select([self.socket], [], [], PATIENCE_S)[0]:
            if self._hear() in (wire.REPLY, wire.REPLY_BULK):
                return True
        return False

    def _hear(self) -> int:
        """Takes in one frame; gives the kind of its message, 0 if it has none."""
        kind, payload = self.read_frame()
        if kind != wire.SEND:
            return 0
        message = int(wire.HEADER.unpack_from(payload)[1])
        if message < wire.DONE:
            self.data += 1
        elif message < wire.CREDIT:
            self.control += 1
        if message == wire.PING:
            self.say(wire.PONG)
        return message

    def lives(self) -> bool:
        """Attends for a moment; False once it has been cut off."""
        try:
            self.attend(PAUSE_S)
        except (EOFError, OSError):
            return False
        return True


def hold(stopped: Callable[[], bool], *attackers: Attacker) -> None:
    """Stays connected and alive until told to stop, or cut off."""
    alive = list(attackers)
    print("attacking", flush=True)
    while not stopped():
        alive = [attacker for attacker in alive if attacker.lives()]
        if not alive:
            time.sleep(PAUSE_S)


def again(stopped: Callable[[], bool], attack: Callable[[], None]) -> None:
    """Attacks over and over, a new connection each time, with a rest between."""
    print("attacking", flush=True)
    while not stopped():
        with contextlib.suppress(EOFError, OSError):
            attack()
        time.sleep(PAUSE_S)


def claimed_pool(address: str, _: str, stopped: Callable[[], bool]) -> None:
    """Announces arrays whose bytes it never gives: a few small messages for all of the pool."""
    attacker = Attacker(address)
    sizes = [
        1 << exponent for exponent in range(34, 15, -1) for _ in range(2)
    ]  # what is refused costs nothing
    for call_id, size in enumerate(sizes, 1):
        attacker.call(call_id, "Bench.send", descriptors=wire.DESCRIPTOR.pack(1 << 16, size, KEY))
    hold(stopped, attacker)


def swollen_item(address: str, _: str, stopped: Callable[[], bool]) -> None:
    """Announces an item of one byte whose message has two gigabytes."""

    def attack() -> None:
        attacker = Attacker(address)
        attacker.call(1, "Bench.take", flags=CLIENT_STREAMS)
        attacker.say(ITEM_BULK, ITEM_BULK_BODY.pack(1, 1 << 16, 2 * GIB, KEY, 0, 1))
        attacker.attend(1.0)

    again(stopped, attack)


def no_credits(address: str, _: str, stopped: Callable[[], bool]) -> None:
    """Sends requests and takes no replies."""

    def attack() -> None:
        attacker = Attacker(address)
        attacker.gives_credits = False
        for call_id in range(1, 20_000):
            attacker.call(call_id, "Bench.echo", bytes(7000))
            if call_id % 50 == 0:
                attacker.attend(PAUSE_S)

    again(stopped, attack)


def unfetched_results(address: str, _: str, stopped: Callable[[], bool]) -> None:
    """Asks for one array after the other and never fetches them."""
    attacker = Attacker(address)
    for call_id in range(1, 121):
        attacker.call(call_id, "Bench.fetch_fresh", 16 * MIB)
        if not attacker.attend_reply():
            break
    hold(stopped, attacker)


def unfetched_replies(address: str, _: str, stopped: Callable[[], bool]) -> None:
    """Asks for replies too long for a slot and never fetches them."""
    attacker = Attacker(address)
    for call_id in range(1, 601):
        attacker.call(call_id, "Bench.numbers", 40_000)
        if not attacker.attend_reply():
            break
    hold(stopped, attacker)


def endless_window(address: str, _: str, stopped: Callable[[], bool]) -> None:
    """Says that it has room for everything, asks for a stream of arrays and takes none."""
    attacker = Attacker(address, window=b"4294967295,18446744073709551615")
    attacker.call(1, "Bench.fetch_each", 65_536, 10**6, flags=SERVER_STREAMS)
    hold(stopped, attacker)


def idle_streams(address: str, _: str, stopped: Callable[[], bool]) -> None:
    """Opens streams that it never sends an item on, twice as many as there are workers."""
    attacker = Attacker(address)
    for call_id in range(1, 9):
        attacker.call(call_id, "Bench.take", flags=CLIENT_STREAMS)
    hold(stopped, attacker)


def half_open(address: str, path: str, stopped: Callable[[], bool]) -> None:
    """Opens ten thousand connections and says nothing on any, and replaces those that were closed."""
    host, port = address.split("://")[1].rsplit(":", 1)
    silent: list[socket.socket] = []

    def connect(count: int) -> None:
        for _ in range(count):
            new = socket.socket()
            new.setblocking(False)
            new.connect_ex((host, int(port)))
            silent.append(new)

    for _ in range(100):
        connect(100)
        time.sleep(PAUSE_S)
    print("attacking", flush=True)
    while not stopped():
        time.sleep(PAUSE_S)
        for old in silent[:20]:
            old.close()
        del silent[:20]
        connect(20)


def claimed_slots(_: str, path: str, stopped: Callable[[], bool]) -> None:
    """Over shared memory: marks every slot of the server's ring as being written to, and leaves."""
    kept = []

    def attack() -> None:
        kept.append(claim_slots(path))
        del kept[:-20]

    again(stopped, attack)


def claim_slots(path: str) -> tuple[socket.socket, mmap.mmap]:
    control_bytes, entry_bytes, exposures = 128, 256, (1 << 16) * 32

    def segment_bytes(entries: int) -> int:
        return (control_bytes + entries * entry_bytes + exposures + 4095) // 4096 * 4096

    link = socket.socket(socket.AF_UNIX)
    link.settimeout(5)
    link.connect(path)
    said, descriptors = b"", array.array("i")
    while len(said) < 132 or not descriptors:
        data, ancillary, _, _ = link.recvmsg(4096, socket.CMSG_SPACE(64))
        said += data
        for _, _, rights in ancillary:
            descriptors.frombytes(rights[: len(rights) // 4 * 4])
    entries, _, size = struct.unpack_from("<IIQ", said, 20)
    ring = mmap.mmap(descriptors[0], size)
    for slot in range(entries):
        at = control_bytes + slot * entry_bytes
        if struct.unpack_from("<I", ring, at)[0] == slot * 4 + 1:  # posted
            struct.pack_into("<I", ring, at, slot * 4 + 2)  # claimed
    for descriptor in descriptors:
        os.close(descriptor)
    own = os.memfd_create("ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(own, segment_bytes(64))
    fcntl.fcntl(own, 1033, 1 | 2 | 4)  # F_ADD_SEALS: no more seals, no shrinking, no growing
    setup = struct.pack(
        "<IIQIIQ16sI56sI", 64, 1 << 16, segment_bytes(64), 2, os.getpid(), 0, bytes(16), 0, b"", 0
    )
    frame = b"rrpc-shm" + struct.pack("<II", 2, 0) + struct.pack("<BBH", 1, 0, len(setup)) + setup
    link.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [own]))])
    link.send(struct.pack("<BBHI", 2, 0, 4, 0))  # READY; the empty offer has the server close
    os.close(own)
    return link, ring


ATTACKS: dict[str, Callable[[str, str, Callable[[], bool]], None]] = {
    "claims the pool": claimed_pool,
    "swollen items": swollen_item,
    "gives no credits": no_credits,
    "fetches no results": unfetched_results,
    "fetches no replies": unfetched_replies,
    "endless window": endless_window,
    "idle streams": idle_streams,
    "10,000 half-open": half_open,
    "claimed shm slots": claimed_slots,
}


def main(attack: str, address: str, path: str) -> None:
    def stopped() -> bool:
        return bool(select.select([sys.stdin], [], [], 0)[0])

    try:
        ATTACKS[attack](address, path, stopped)
    except (EOFError, OSError) as error:
        print("attacking, and cut off:", error, flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
