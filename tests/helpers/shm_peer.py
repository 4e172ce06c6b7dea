"""A peer that speaks the shm wire format by hand, so that it can speak it wrongly: see cpp/provider/shm/wire.h."""

import array
import fcntl
import mmap
import os
import socket
import struct
import sys

SETUP, READY, SLAB = 1, 2, 3
SETUP_NOTICE = struct.Struct(
    "<IIQIIQ16sI56sI"
)  # ring entries, exposures, segment bytes, flags, pid, nonce, ...
HEADER = struct.Struct("<BBH")  # type, zero, payload bytes
PREAMBLE = b"rrpc-shm" + struct.pack("<II", 2, 0)
EXPOSURES, ENTRIES_OFFSET, ENTRY_BYTES = 65536, 128, 256
F_ADD_SEALS, SIZE_SEALS = 1033, 1 | 2 | 4


def segment_bytes(entries: int) -> int:
    return (ENTRIES_OFFSET + entries * ENTRY_BYTES + EXPOSURES * 32 + 4095) // 4096 * 4096


class ShmPeer:
    """Connected to a server's socket, with the server's control segment mapped."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.fds: list[int] = []  # the control segment, then shared files
        wanted = len(PREAMBLE) + HEADER.size + SETUP_NOTICE.size
        received = b""
        while len(received) < wanted or not self.fds:
            data, fds, _, _ = socket.recv_fds(self.socket, wanted - len(received), 4)
            assert data, "the server hung up"
            received += data
            self.fds += fds
        self.entries, _, size, *_ = SETUP_NOTICE.unpack(received[-SETUP_NOTICE.size :])
        self.control = mmap.mmap(self.fds[0], size)

    def claim_all(self) -> None:
        """Says of each posted slot that it is being copied into, for ever."""
        for slot in range(self.entries):
            at = ENTRIES_OFFSET + slot * ENTRY_BYTES
            if struct.unpack_from("<I", self.control, at)[0] == slot * 4 + 1:
                struct.pack_into("<I", self.control, at, slot * 4 + 2)

    def next_fd(self) -> int:
        """Descriptor of the next shared file that the server sends."""
        while len(self.fds) < 2:
            _, fds, _, _ = socket.recv_fds(self.socket, 4096, 4)
            self.fds += fds
        return self.fds.pop()

    def finish_handshake(self) -> None:
        """With an empty offer, at which an rrpc server closes the connection."""
        mine = os.memfd_create("peer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(mine, segment_bytes(64))
        fcntl.fcntl(mine, F_ADD_SEALS, SIZE_SEALS)
        notice = SETUP_NOTICE.pack(64, EXPOSURES, segment_bytes(64), 2, os.getpid(), 0, bytes(16), 0, b"", 0)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [mine]))]
        self.socket.sendmsg([PREAMBLE + HEADER.pack(SETUP, 0, len(notice)) + notice], rights)
        self.socket.send(HEADER.pack(READY, 0, 4) + struct.pack("<I", 0))
        os.close(mine)

    def wait_for_end(self) -> None:
        while self.socket.recv(4096):
            pass


def claim_everything(path: str, count: int) -> None:
    """A process that connects so often, claims all slots each time and stays until its standard input ends."""
    peers = [ShmPeer(path) for _ in range(count)]
    for peer in peers:
        peer.claim_all()
        peer.finish_handshake()
    for peer in peers:
        peer.wait_for_end()
    print("ended by the server", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    claim_everything(sys.argv[1], int(sys.argv[2]))
