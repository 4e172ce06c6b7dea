"""Certificates that change while a server runs."""

import contextlib
import socket
import ssl
import threading
from pathlib import Path

import pytest
from certificates import Issued, Parties
from processes import eventually
from tls_service import Vault, port_of

import rrpc


def _serial_shown(address: str, parties: Parties) -> int:
    """Returns the serial number of the certificate that the server shows to a stranger's TLS."""
    context = ssl.create_default_context(cafile=str(parties.authority.path))
    context.load_cert_chain(parties.client.cert, parties.client.key)
    with (
        socket.create_connection(("127.0.0.1", port_of(address))) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        shown = secure.getpeercert()
        assert shown is not None
        return int(str(shown["serialNumber"]), 16)


def _until_shown(address: str, parties: Parties, issued: Issued) -> None:
    wanted = issued.certificate.serial_number
    eventually(lambda: _serial_shown(address, parties) == wanted, 20, "the new certificate")


def _until_counted(calls: list[int], wanted: int) -> None:
    eventually(lambda: calls[1] > wanted, 20, "new connections")


def test_a_new_certificate_is_taken_without_losing_a_call(tmp_path: Path) -> None:
    parties = Parties.meet(tmp_path)
    with rrpc.serve(Vault(), listen="tcps://127.0.0.1:0", **parties.of_server()) as server:
        address = server.addresses[0]
        calls, errors, over = [0, 0], [], threading.Event()

        def keep_calling(place: int, again: bool) -> None:
            with contextlib.ExitStack() as stack:
                client = None
                while not over.is_set():
                    try:
                        if client is None or again:
                            stack.close()
                            client = stack.enter_context(rrpc.connect(address, **parties.of_client()))
                        assert client.call("Vault.add", 1, 2) == 3
                    except Exception as error:
                        errors.append(error)
                        return
                    calls[place] += 1

        threads = [threading.Thread(target=keep_calling, args=each) for each in ((0, False), (1, True))]
        for thread in threads:
            thread.start()
        try:
            for _ in range(3):
                new = parties.authority.issue("server", "localhost", "127.0.0.1")
                _until_shown(address, parties, new)
                _until_counted(calls, calls[1] + 3)
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert not errors
        assert min(calls) > 10


def test_a_broken_file_keeps_the_old_one(tmp_path: Path) -> None:
    parties = Parties.meet(tmp_path)
    with rrpc.serve(Vault(), listen="tcps://127.0.0.1:0", **parties.of_server()) as server:
        old = _serial_shown(server.addresses[0], parties)
        parties.server.cert.write_text("nothing of use\n")
        eventually(lambda: "server.pem" in server.tls_problem(), 20, "the problem")
        assert _serial_shown(server.addresses[0], parties) == old
        new = parties.authority.issue("server", "localhost", "127.0.0.1")
        _until_shown(server.addresses[0], parties, new)
        assert server.tls_problem() == ""


def test_a_list_that_revokes_a_client_keeps_it_out(tmp_path: Path) -> None:
    """Also where it has a ticket of an earlier handshake."""
    parties = Parties.meet(tmp_path)
    lists = parties.authority.revocation_list()
    options = parties.of_server() | {"tls_crl": str(lists)}
    with rrpc.serve(Vault(), listen="tcps://127.0.0.1:0", **options) as server:
        for _ in range(2):
            with rrpc.connect(server.addresses[0], **parties.of_client()) as client:
                assert client.call("Vault.add", 1, 2) == 3
        parties.authority.revocation_list([parties.client])

        def refused() -> bool:
            try:
                with rrpc.connect(server.addresses[0], **parties.of_client()):
                    return False
            except rrpc.Unauthenticated as error:
                return "revoked" in str(error)

        eventually(refused, 20, "the revocation")


def test_a_client_takes_its_new_certificate(tmp_path: Path) -> None:
    parties = Parties.meet(tmp_path)
    stale = parties.authority.issue("worker", "worker", valid=(-3, -2))
    options = stale.options() | {"tls_ca": str(parties.authority.path)}
    with rrpc.serve(Vault(), listen="tcps://127.0.0.1:0", **parties.of_server()) as server:
        with pytest.raises(rrpc.Unauthenticated, match="expired"):
            rrpc.connect(server.addresses[0], **options)
        parties.authority.issue("worker", "worker")

        def admitted() -> bool:
            with contextlib.suppress(rrpc.Unauthenticated), rrpc.connect(server.addresses[0], **options) as c:
                return bool(c.call("Vault.add", 1, 2) == 3)
            return False

        eventually(admitted, 20, "the new certificate of the client")
