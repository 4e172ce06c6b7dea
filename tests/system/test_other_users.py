"""What a process of another user reaches of a server with --any-user: its own, and nothing else. Needs root."""

import os
from pathlib import Path

import pytest
from processes import HELPERS, ROOT, Served, ServeFactory, run_python

import rrpc

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")

VAULT = """
from typing import Any
import numpy as np
from numpy.typing import NDArray
import rrpc

@rrpc.service
class Vault:
    def __init__(self) -> None:
        self.kept: list[Any] = []

    @rrpc.method
    def keep(self, secret: bytes) -> None:
        "In memory of the pool, where results for others are."
        array = rrpc.zeros(1 << 16, np.uint8)
        array[: len(secret)] = np.frombuffer(secret, np.uint8)
        self.kept.append(array)

    @rrpc.method
    def give(self, nbytes: int, fill: int) -> NDArray[np.uint8]:
        array = rrpc.empty(nbytes, np.uint8)
        array[...] = fill
        return array

    @rrpc.method
    def total(self, array: NDArray[np.uint8]) -> int:
        return int(array.sum(dtype=np.int64))
"""

BECOME_NOBODY = """
import os, sys
import numpy as np
import rrpc
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
"""


@pytest.fixture
def vault(serve: ServeFactory, short_tmp: Path) -> Served:
    short_tmp.chmod(0o755)
    return serve(VAULT, "Vault", listen=f"shm://{short_tmp}/vault.sock", args=["--any-user"])


def test_nothing_of_others_is_mapped(vault: Served) -> None:
    code = (
        BECOME_NOBODY
        + """
import ctypes
with rrpc.connect(sys.argv[1], timeout=20.0) as client:
    results = [client.call("Vault.give", 1 << 16, fill) for fill in range(1, 9)]
    assert [(int(r.min()), int(r.max())) for r in results] == [(fill, fill) for fill in range(1, 9)]
    secret = bytes.fromhex(sys.argv[2])
    peers = 0
    for line in open("/proc/self/maps"):
        if "memfd:rrpc-" in line and line.split()[1][0] == "r":
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            peers += line.split()[1] == "r--s"
            assert secret not in ctypes.string_at(start, min(end - start, 8 << 20)), line
    assert peers > 0, "the server's copies are mapped"
"""
    )
    secret = b"the secret of another"
    with rrpc.connect(vault.address, timeout=20.0) as client:
        for _ in range(20):
            client.call("Vault.keep", secret)
    run_python(code, vault.address, secret.hex())


def test_arrays_go_both_ways_as_copies(vault: Served) -> None:
    code = (
        BECOME_NOBODY
        + """
with rrpc.connect(sys.argv[1], timeout=20.0) as client:
    assert client.info()["bulk_method"] == "staged", client.info()
    mine = rrpc.empty(3 << 20, np.uint8)
    mine[...] = 1
    for array in (mine, np.ones(3 << 20, np.uint8)):
        before = rrpc.stats()["bytes_staged"]
        assert client.call("Vault.total", array) == 3 << 20
        assert rrpc.stats()["bytes_staged"] == before + (3 << 20)
    out = np.zeros(3 << 20, np.uint8)
    assert client.call("Vault.give", 3 << 20, 5, out=out) is out
    assert out.min() == 5
    long = client.call("Vault.total", np.ones(20_000, np.uint8).repeat(2)[::2])
    assert long == 20_000
"""
    )
    run_python(code, vault.address)


def test_more_than_is_copied_at_a_time_is_refused(vault: Served) -> None:
    code = (
        BECOME_NOBODY
        + """
with rrpc.connect(sys.argv[1], timeout=20.0) as client:
    try:
        client.call("Vault.total", np.zeros(300 << 20, np.uint8))
    except rrpc.ResourceExhausted as error:
        assert "kOtherUserBytesMax" in str(error) and "268435456" in str(error), error
    else:
        raise AssertionError("taken")
    assert client.call("Vault.total", np.ones(1 << 20, np.uint8)) == 1 << 20
"""
    )
    run_python(code, vault.address)


def test_what_is_passed_cannot_be_opened_again(vault: Served) -> None:
    """A descriptor that may only be read, say, doesn't lead to one that may be written."""
    code = (
        "import shm_peer\n"
        + BECOME_NOBODY
        + """
peer = shm_peer.ShmPeer(sys.argv[1].removeprefix("shm://"))
ring = peer.next_fd()
for fd in (peer.fds[0], ring):
    for mode in (os.O_RDWR, os.O_RDONLY):
        try:
            os.open(f"/proc/self/fd/{fd}", mode)
        except PermissionError:
            continue
        raise AssertionError(f"opened again: {os.readlink(f'/proc/self/fd/{fd}')}")
"""
    )
    run_python(code, vault.address, PYTHONPATH=f"{HELPERS}:{ROOT}")
