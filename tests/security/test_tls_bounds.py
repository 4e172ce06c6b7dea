"""Before a peer is known it costs little, and what it costs is given back."""

import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import Parties
from processes import eventually
from tls_service import Vault, port_of

import rrpc


@pytest.fixture
def parties(tmp_path: Path) -> Parties:
    return Parties.meet(tmp_path)


@pytest.fixture
def server(parties: Parties) -> Iterator[rrpc.Server]:
    with rrpc.serve(Vault(), listen="tcps://127.0.0.1:0", **parties.of_server()) as server:
        yield server


def _sockets() -> int:
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return count


def _half_a_hello() -> bytes:
    """The first half of what a TLS client says first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    client = context.wrap_bio(incoming, outgoing)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    whole = outgoing.read()
    return whole[: len(whole) // 2]


def test_half_handshakes_keep_nobody_out(server: rrpc.Server, parties: Parties) -> None:
    """More than may be under way at a time: the oldest end for the next, and honest clients get in."""
    port = port_of(server.addresses[0])
    before = _sockets()
    words = _half_a_hello()
    with contextlib.ExitStack() as held:
        for _ in range(1200):
            each = held.enter_context(socket.create_connection(("127.0.0.1", port)))
            each.sendall(words)
        for _ in range(5):
            with rrpc.connect(server.addresses[0], **parties.of_client()) as client:
                assert client.call("Vault.add", 1, 2) == 3
    eventually(lambda: _sockets() <= before, 30, "the sockets of half handshakes")


def test_a_handshake_without_end_is_cut(server: rrpc.Server) -> None:
    """A first message that says that it is long, of which more and more comes."""
    with socket.create_connection(("127.0.0.1", port_of(server.addresses[0]))) as client:
        client.settimeout(30)
        record = b"\x16\x03\x01\x40\x00" + b"\x01\x00\xff\xf0" + bytes((1 << 14) - 4)
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                client.sendall(record)
        with contextlib.suppress(ConnectionError):
            while client.recv(1 << 16):
                pass  # an alert


def test_many_come_at_once(server: rrpc.Server, parties: Parties) -> None:
    failed: list[Exception] = []

    def come() -> None:
        try:
            for _ in range(5):
                with rrpc.connect(server.addresses[0], connect_timeout=60, **parties.of_client()) as client:
                    assert client.call("Vault.add", 1, 2, timeout=60) == 3
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=come) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_a_server_that_stops_during_handshakes_ends(parties: Parties) -> None:
    words = _half_a_hello()
    with (
        contextlib.ExitStack() as held,
        rrpc.serve(Vault(), listen="tcps://127.0.0.1:0", **parties.of_server()) as server,
    ):
        for _ in range(50):
            each = held.enter_context(socket.create_connection(("127.0.0.1", port_of(server.addresses[0]))))
            each.sendall(words)
    assert not [thread for thread in os.listdir("/proc/self/task") if _name_of(thread) == "rrpc-tls"]


def _name_of(thread: str) -> str:
    try:
        return Path(f"/proc/self/task/{thread}/comm").read_text().strip()
    except FileNotFoundError:
        return ""


def test_a_client_that_waits_for_a_silent_server_ends_in_time(parties: Parties) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcps://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(rrpc.DeadlineExceeded):
            rrpc.connect(address, connect_timeout=0.3, **parties.of_client())
