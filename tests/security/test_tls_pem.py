"""Certificates that are given as PEM text, and authorities of whose certificates any will do."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority, Parties
from tls_service import Vault

import rrpc


@pytest.fixture
def parties(tmp_path: Path) -> Parties:
    return Parties.meet(tmp_path)


def as_text(options: dict[str, Any], read: Callable[[Path], str | bytes] = Path.read_text) -> dict[str, Any]:
    """Returns the same options with what the files have in place of their paths."""
    return {name: read(Path(path)) for name, path in options.items()}


@pytest.mark.parametrize("read", [Path.read_text, Path.read_bytes])
def test_text_does_what_files_do(parties: Parties, read: Callable[[Path], str | bytes]) -> None:
    server_options, client_options = (
        as_text(each, read) for each in (parties.of_server(), parties.of_client())
    )
    for path in (parties.authority.path, parties.server.cert, parties.server.key, parties.client.key):
        path.unlink()
    with (
        rrpc.serve(Vault(), listen="rrpcs://127.0.0.1:0", **server_options) as server,
        rrpc.connect(server.addresses[0], **client_options) as client,
    ):
        assert client.call("Vault.add", 1, 2) == 3
        assert server.tls_problem() == ""


def test_a_revocation_list_as_text(parties: Parties) -> None:
    revoked = parties.authority.revocation_list([parties.client]).read_text()
    with (
        rrpc.serve(Vault(), listen="tcps://127.0.0.1:0", tls_crl=revoked, **parties.of_server()) as server,
        pytest.raises(rrpc.Unauthenticated, match="revoked"),
    ):
        rrpc.connect(server.addresses[0], **parties.of_client())


@pytest.mark.parametrize("option", ["tls_cert", "tls_key", "tls_ca"])
def test_wrong_text_is_not_repeated_in_the_error(parties: Parties, option: str) -> None:
    wrong = re.sub(r"(?<=-----\n)(.{10})", r"\1!!", as_text(parties.of_server())[option], count=1)
    with pytest.raises(rrpc.InvalidArgument, match="the PEM text given: no ") as caught:
        rrpc.serve(Vault(), listen="tcps://127.0.0.1:0", **parties.of_server() | {option: wrong})
    assert "BEGIN" not in str(caught.value)
    assert "!!" not in str(caught.value)


def test_any_certificate_of_the_authority(parties: Parties) -> None:
    inside = parties.authority.issue("inside", "inside.example.org").options()
    ours = parties.of_client()
    with rrpc.serve(Vault(), listen="tcps://127.0.0.1:0", **parties.of_server() | inside) as server:
        address = server.addresses[0]
        with pytest.raises(rrpc.Unauthenticated, match=r"not for 127\.0\.0\.1"):
            rrpc.connect(address, **ours)
        with rrpc.connect(address, tls_peer_name="*", **ours) as client:
            assert client.call("Vault.add", 1, 2) == 3


def test_no_certificate_of_another_authority(parties: Parties, tmp_path: Path) -> None:
    outside = Authority(tmp_path, "another authority").issue("outside", "127.0.0.1").options()
    with (
        rrpc.serve(Vault(), listen="tcps://127.0.0.1:0", **parties.of_server() | outside) as server,
        pytest.raises(rrpc.Unauthenticated, match="isn't signed by an authority"),
    ):
        rrpc.connect(server.addresses[0], tls_peer_name="*", **parties.of_client())


def test_any_certificate_wants_an_authority_of_its_own() -> None:
    with pytest.raises(rrpc.InvalidArgument, match=r"'\*' takes whoever has a certificate of tls_ca"):
        rrpc.connect("tcps://127.0.0.1:1", tls_peer_name="*")
