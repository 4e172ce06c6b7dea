"""Peers who can't be trusted: each is refused with one clear line, and the others go on."""

import re
import socket
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority, Parties
from processes import eventually
from tls_service import Proxy, Vault, port_of

import rrpc

Options = dict[str, Any]


@dataclass(frozen=True)
class Case:
    name: str
    text: str
    server: Callable[[Parties], Options] = Parties.of_server
    client: Callable[[Parties], Options] = Parties.of_client


def _server_valid(begin: float, end: float) -> Callable[[Parties], Options]:
    return lambda those: (
        those.of_server() | those.authority.issue("late", "127.0.0.1", valid=(begin, end)).options()
    )


def _client_valid(begin: float, end: float) -> Callable[[Parties], Options]:
    return lambda those: those.of_client() | those.authority.issue("odd", "odd", valid=(begin, end)).options()


def _stranger(those: Parties) -> Authority:
    return Authority(Path(those.authority.path).parent, "another authority")


CASES = [
    Case("expired server", "the server's certificate .* has expired .*here it is", _server_valid(-2, -1)),
    Case("future server", "isn't valid yet .*is a clock wrong", _server_valid(1, 2)),
    Case(
        "server of another authority",
        "the server's certificate isn't signed by an authority of .*authority.pem",
        lambda those: those.of_server() | _stranger(those).issue("stranger", "127.0.0.1").options(),
    ),
    Case(
        "server of another name",
        "certificate is for DNS elsewhere.example.org, not for 127.0.0.1; .*tls_peer_name",
        lambda those: those.of_server() | those.authority.issue("other", "elsewhere.example.org").options(),
    ),
    Case(
        "another name wanted",
        "DNS localhost, URI spiffe://example.org/server, not for db.example.org",
        client=lambda those: those.of_client() | {"tls_peer_name": "db.example.org"},
    ),
    Case(
        "another SPIFFE id wanted",
        "not for spiffe://example.org/other",
        client=lambda those: those.of_client() | {"tls_peer_name": "spiffe://example.org/other"},
    ),
    Case(
        "client without certificate",
        "the server asks for a certificate, and there is none",
        client=lambda those: {"tls_ca": str(those.authority.path)},
    ),
    Case(
        "client of another authority",
        "the server trusts no authority that has signed its certificate",
        client=lambda those: those.of_client() | _stranger(those).issue("foreign", "foreign").options(),
    ),
    Case("expired client", "the server finds its certificate expired", client=_client_valid(-2, -1)),
    Case("future client", "the server finds its certificate", client=_client_valid(1, 2)),
    Case(
        "revoked client",
        "the server finds its certificate revoked",
        server=lambda those: (
            those.of_server() | {"tls_crl": str(those.authority.revocation_list([those.client]))}
        ),
    ),
    Case(
        "revoked server",
        "the server's certificate is revoked",
        client=lambda those: (
            those.of_client() | {"tls_crl": str(those.authority.revocation_list([those.server]))}
        ),
    ),
    Case(
        "no lists of the authority",
        "unable to get certificate CRL",
        client=lambda those: those.of_client() | {"tls_crl": str(_stranger(those).revocation_list())},
    ),
    Case(
        "the system's authorities alone",
        "isn't signed by an authority of this system",
        client=lambda those: those.client.options(),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_is_refused(case: Case, tmp_path: Path) -> None:
    parties = Parties.meet(tmp_path)
    with rrpc.serve(Vault(), listen="tcps://127.0.0.1:0", **case.server(parties)) as server:
        with pytest.raises(rrpc.Unauthenticated, match=case.text) as refused:
            rrpc.connect(server.addresses[0], **case.client(parties))
        assert "\n" not in str(refused.value)
        if case.name == "another SPIFFE id wanted":
            return  # the client looks at it once both have shaken hands
        eventually(lambda: server.tls_refusals()[0] == 1, 10, "the server's note of it")
        assert re.match(r"127\.0\.0\.1:\d+: ", server.tls_refusals()[1])


def test_lists_that_revoke_others_do_no_harm(tmp_path: Path) -> None:
    parties = Parties.meet(tmp_path)
    lists = str(parties.authority.revocation_list([parties.authority.issue("gone", "gone")]))
    with (
        rrpc.serve(Vault(), listen="tcps://127.0.0.1:0", **parties.of_server(), tls_crl=lists) as server,
        rrpc.connect(server.addresses[0], **parties.of_client(), tls_crl=lists) as client,
    ):
        assert client.call("Vault.add", 1, 2) == 3


@pytest.mark.parametrize("name", ["localhost", "spiffe://example.org/server", "127.0.0.1"])
def test_each_of_its_names_is_good(tmp_path: Path, name: str) -> None:
    parties = Parties.meet(tmp_path)
    with (
        rrpc.serve(Vault(), listen="tcps://127.0.0.1:0", **parties.of_server()) as server,
        rrpc.connect(server.addresses[0], **parties.of_client(), tls_peer_name=name) as client,
    ):
        assert client.call("Vault.add", 1, 2) == 3


def test_one_end_without_tls(tmp_path: Path) -> None:
    parties = Parties.meet(tmp_path)
    options = parties.of_client()
    with (
        rrpc.serve(Vault(), listen="tcps://127.0.0.1:0", **parties.of_server()) as secure,
        rrpc.serve(Vault(), listen="tcp://127.0.0.1:0") as clear,
        rrpc.connect(secure.addresses[0], **options) as client,
    ):
        with pytest.raises(rrpc.ProtocolError, match="the peer speaks TLS, not rrpc without it; rrpcs://"):
            rrpc.connect(f"tcp://127.0.0.1:{port_of(secure.addresses[0])}")
        with pytest.raises(rrpc.Unauthenticated, match="the server speaks rrpc without TLS"):
            rrpc.connect(f"tcps://127.0.0.1:{port_of(clear.addresses[0])}", **options)
        assert client.call("Vault.add", 1, 2) == 3


def _refuse(tmp_path: Path, context: ssl.SSLContext, match: str) -> None:
    """Sees a server end the handshake of a client with this context with the error that `match` describes."""
    parties = Parties.meet(tmp_path)
    context.load_verify_locations(cafile=str(parties.authority.path))
    with (
        rrpc.serve(Vault(), listen="tcps://127.0.0.1:0", **parties.server.options()) as server,
        socket.create_connection(("127.0.0.1", port_of(server.addresses[0]))) as plain,
        pytest.raises(ssl.SSLError, match=match),
    ):
        context.wrap_socket(plain, server_hostname="localhost")


def test_older_versions_are_refused(tmp_path: Path) -> None:
    """A downgrade ends at the server, whatever the client would take."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    _refuse(tmp_path, context, r"(?i)protocol.version")


def test_another_protocol_over_tls_is_refused(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    _refuse(tmp_path, context, r"(?i)no.application.protocol")


def test_what_isnt_tls_ends_alone(tmp_path: Path) -> None:
    """Garbage, half a hello, a hello without end: each ends, or waits within its bounds, and others connect."""
    parties = Parties.meet(tmp_path)
    first_words = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x40\x00" + b"\x01" * 20,
        b"\x16\x03\x01\x00\x05hello",
        bytes(range(256)) * 300,
        struct.pack("!BHH", 0x16, 0x0303, 0xFFFF),
        b"\xa7\x01",
    ]
    with rrpc.serve(Vault(), listen="tcps://127.0.0.1:0", **parties.of_server()) as server:
        port = port_of(server.addresses[0])
        held = []
        for number in range(300):
            each = socket.create_connection(("127.0.0.1", port))
            each.sendall(first_words[number % len(first_words)])
            held.append(each)
        with rrpc.connect(server.addresses[0], **parties.of_client()) as client:
            assert client.call("Vault.add", 1, 2) == 3
        for each in held:
            each.close()
        with rrpc.connect(server.addresses[0], **parties.of_client()) as client:
            assert client.call("Vault.add", 1, 2) == 3


class _Tamper:
    """Changes one piece of what passes in one direction, once it is armed."""

    def __init__(self, how: str, of_client: bool, place: int) -> None:
        self.armed = False
        self._how, self._of_client, self._place = how, of_client, place

    def __call__(self, data: bytes, from_client: bool, passed: int) -> bytes:
        if from_client != self._of_client or not self.armed:
            return data
        self.armed = False
        at = self._place % len(data)
        if self._how == "flip":
            return data[:at] + bytes([data[at] ^ 1 << self._place % 8]) + data[at + 1 :]
        return b"" if self._how == "drop" else data + data


def _use(client: rrpc.Client, place: int, timeout: float) -> None:
    """Calls until the tampering is noticed; no call has a wrong result."""
    for number in range(4):
        assert client.call("Vault.add", place, number, timeout=timeout) == place + number


@pytest.mark.parametrize("from_client", [True, False], ids=["requests", "replies"])
@pytest.mark.parametrize("how", ["flip", "drop", "twice"])
def test_what_is_changed_on_the_way_is_refused(tmp_path: Path, from_client: bool, how: str) -> None:
    """Each time at another place after the handshake. The connection ends, and others go on."""
    parties = Parties.meet(tmp_path)
    patience = 0.2 if how == "drop" else 1.0  # a message that never comes is only missed
    with (
        rrpc.serve(Vault(), listen="tcps://127.0.0.1:0", **parties.of_server()) as server,
        rrpc.connect(server.addresses[0], **parties.of_client()) as bystander,
    ):
        for place in range(12 if how == "drop" else 40):
            tamper = _Tamper(how, from_client, place)
            with (
                Proxy(port_of(server.addresses[0]), tamper) as proxy,
                rrpc.connect(f"tcps://127.0.0.1:{proxy.port}", **parties.of_client(), retry=None) as client,
            ):
                assert client.call("Vault.add", place, 1) == place + 1
                tamper.armed = True
                with pytest.raises((rrpc.Unavailable, rrpc.ProtocolError, rrpc.DeadlineExceeded)):
                    _use(client, place, patience)
        assert bystander.call("Vault.add", 1, 2) == 3
