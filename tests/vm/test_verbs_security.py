"""From TLS to RDMA: who may go there, and who is refused."""

import re
import select
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from certificates import Parties
from tls_service import Vault

import rrpc
from rrpc import _core


class _Listener:
    """Takes a copy of every packet on every interface, as tcpdump does."""

    def __init__(self) -> None:
        self.seen = bytearray()
        self._over = threading.Event()
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # ETH_P_ALL
        self._socket.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
        self._thread = threading.Thread(target=self._listen)

    def _listen(self) -> None:
        while select.select([self._socket], [], [], 0.2)[0] or not self._over.is_set():
            with suppress(BlockingIOError):
                self.seen += self._socket.recv(1 << 16, socket.MSG_DONTWAIT)

    def __enter__(self) -> "_Listener":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()
        self._socket.close()


HOSTS = {"rxe": "10.9.0.1", "siw": "10.9.1.1"}
EVERYWHERE = [("verbs", "rxe"), ("verbs", "siw"), ("verbs+tcp", "rxe")]


@contextmanager
def _served(
    folder: Path, adapter: str, scheme: str = "rrpcs", **options: Any
) -> Iterator[tuple[str, Parties]]:
    # Two in one test must not share files: those that a TLS context has read are looked at again only after a second.
    authority = Parties.meet(Path(tempfile.mkdtemp(dir=folder))).authority
    server = authority.issue("server", HOSTS[adapter], "localhost")
    parties = Parties(authority, server, authority.issue("client", "client.example.org"))
    listen = f"{scheme}://{HOSTS[adapter]}:0"
    with rrpc.serve(Vault(), listen=listen, **parties.of_server(), **options) as served:
        yield served.addresses[0], parties


@pytest.mark.parametrize("adapter", HOSTS)
def test_by_default_nothing_goes_over_rdma(tmp_path: Path, adapter: str) -> None:
    with (
        _served(tmp_path, adapter) as (address, parties),
        rrpc.connect(address, transports="verbs,tcp", **parties.of_client()) as client,
    ):
        assert client.info()["transport"] == "tcp"
        assert "rdma_security is 'none' at the server" in client.info()["why_not"]["verbs"]
    with (
        _served(tmp_path, adapter, rdma_security="identity") as (address, parties),
        rrpc.connect(address, transports="verbs,tcp", **parties.of_client()) as client,
    ):
        assert client.info()["transport"] == "tcp"
        assert "rdma_security is 'none'" in client.info()["why_not"]["verbs"]


@pytest.mark.parametrize("mode", ["identity", "sign", "encrypt"])
@pytest.mark.parametrize("adapter", HOSTS)
def test_an_introduced_client_is_let_in(tmp_path: Path, adapter: str, mode: str) -> None:
    """And everything works as it does without protection."""
    values = np.arange(200_000, dtype=np.float64)
    with _served(tmp_path, adapter, rdma_security="identity") as (address, parties):
        options = parties.of_client() | {"transports": "verbs", "rdma_security": mode}
        with rrpc.connect(address, timeout=30, **options) as client:
            assert client.info()["transport"] == "verbs"
            assert client.info()["security"] == mode
            assert client.call("Vault.add", 1, 2) == 3
            assert np.array_equal(client.call("Vault.double", values), values * 2)
            assert client.call("Vault.text", "ab" * 100_000) == "ba" * 100_000
            assert list(rrpc.open_stream(client, "Vault.count", 300)) == list(range(300))


@pytest.mark.parametrize(("scheme", "adapter"), EVERYWHERE)
def test_an_address_of_verbs_with_tls(tmp_path: Path, scheme: str, adapter: str) -> None:
    values = np.arange(20_000, dtype=np.float64)
    with _served(tmp_path, adapter, scheme, rdma_security="encrypt") as (address, parties):
        assert address.startswith(f"{scheme}://{HOSTS[adapter]}:")
        with rrpc.connect(address, timeout=30, rdma_security="sign", **parties.of_client()) as client:
            info = client.info()
            assert info["address"] == address
            assert info["transport"] == scheme
            assert info["security"] == "encrypt"
            assert client.call("Vault.add", 1, 2) == 3
            assert np.array_equal(client.call("Vault.double", values), values * 2)


@pytest.mark.parametrize(("scheme", "adapter"), EVERYWHERE)
def test_an_address_of_verbs_with_tls_is_closed_to_others(tmp_path: Path, scheme: str, adapter: str) -> None:
    with _served(tmp_path, adapter, scheme, rdma_security="identity") as (address, parties):
        with pytest.raises(rrpc.Unavailable, match=re.escape(address)):
            rrpc.connect(address, connect_timeout=20)
        with pytest.raises(rrpc.Unauthenticated, match="the server asks for a certificate"):
            rrpc.connect(
                address, connect_timeout=20, rdma_security="sign", tls_ca=str(parties.authority.path)
            )
    with rrpc.serve(Vault(), listen=f"{scheme}://{HOSTS[adapter]}:0") as server:
        in_clear = server.addresses[0]
        with pytest.raises((rrpc.Unavailable, rrpc.ProtocolError), match=re.escape(in_clear)):
            rrpc.connect(in_clear, connect_timeout=20, rdma_security="sign", **parties.of_client())


def test_the_stronger_wish_counts(tmp_path: Path) -> None:
    with _served(tmp_path, "rxe", rdma_security="encrypt") as (address, parties):
        options = parties.of_client() | {"transports": "verbs", "rdma_security": "identity"}
        with rrpc.connect(address, timeout=30, **options) as client:
            assert client.info()["security"] == "encrypt"


@pytest.mark.parametrize("mode", ["identity", "encrypt"])
def test_what_a_listener_on_the_wire_sees(tmp_path: Path, mode: str) -> None:
    """All packets, while a marked array and a marked text go both ways.

    Within one host Soft-RoCE hands packets over without an interface, so that only Soft-iWARP's are seen.
    """
    marked = np.frombuffer(b"the combination " * 25_000, np.float64)
    with _served(tmp_path, "siw", rdma_security=mode) as (address, parties):
        options = parties.of_client() | {"transports": "verbs", "rdma_security": mode}
        with rrpc.connect(address, timeout=30, **options) as client, _Listener() as listener:
            assert np.array_equal(client.call("Vault.double", marked), marked * 2)
            assert client.call("Vault.text", "the combination ") == " noitanibmoc eht"
        seen = bytes(listener.seen)
    assert len(seen) > marked.nbytes
    assert (b"the combination" in seen) == (mode == "identity")
    assert (b"Vault.double" in seen) == (mode == "identity")


@pytest.mark.parametrize("adapter", HOSTS)
def test_nobody_else_is(tmp_path: Path, adapter: str) -> None:
    with _served(tmp_path, adapter, rdma_security="identity") as (address, parties):
        over_tls = _core.Client(
            address, _core.default_options() | {"transports": "tcp"} | parties.of_client(), 20.0
        )
        beside = over_tls.peer_hello()[b"verbs"].decode().split(",")[0]
        with pytest.raises(rrpc.RpcError, match="for clients that TLS has let in"):
            rrpc.connect(f"verbs://{beside}", connect_timeout=20)
        over_tls.close()
