"""Who calls, by certificate: what handlers see, and what rules say of it."""

from pathlib import Path

import pytest
from certificates import Parties

import rrpc


@rrpc.service
class Gate:
    @rrpc.method
    def who(self) -> list[str]:
        peer = rrpc.context().peer
        return [peer.kind, peer.name, peer.subject, *peer.dns_names, *peer.uris]

    @rrpc.method
    def where(self) -> list[int | None]:
        peer = rrpc.context().peer
        return [peer.uid, peer.pid]

    @rrpc.method(allow=["spiffe://example.org/client"])
    def by_id(self) -> str:
        return "in"

    @rrpc.method(allow=["dns:*.example.org"])
    def by_name(self) -> str:
        return "in"

    @rrpc.method(allow=["spiffe://example.org/other", "dns:example.org"])
    def by_others(self) -> str:
        return "in"

    @rrpc.method(allow=["authenticated"])
    def known(self) -> str:
        return "in"


WHO = ["certificate", "client.example.org", "CN=client", "client.example.org", "spiffe://example.org/client"]


@pytest.mark.parametrize("transports", ["tcp", "shm"])
def test_the_certificate_is_the_caller(tmp_path: Path, transports: str) -> None:
    """Over TLS, and over shared memory to which TLS has introduced the client. Also with a ticket, the second time."""
    parties = Parties.meet(tmp_path)
    with rrpc.serve(Gate(), listen="rrpcs://127.0.0.1:0", **parties.of_server()) as server:
        for _ in range(3):
            with rrpc.connect(server.addresses[0], transports=transports, **parties.of_client()) as client:
                assert client.info()["transport"] == transports
                assert client.call("Gate.who") == WHO
                assert client.call("Gate.by_id") == client.call("Gate.by_name") == "in"
                assert client.call("Gate.known") == "in"
                assert (client.call("Gate.where")[0] is not None) == (transports == "shm")
                with pytest.raises(rrpc.PermissionDenied, match=r"Gate.by_others.*client\.example\.org"):
                    client.call("Gate.by_others")


def test_without_a_certificate_nobody_is_known(tmp_path: Path) -> None:
    parties = Parties.meet(tmp_path)
    with (
        rrpc.serve(Gate(), listen="tcps://127.0.0.1:0", **parties.server.options()) as server,
        rrpc.connect(server.addresses[0], tls_ca=str(parties.authority.path)) as client,
    ):
        assert client.call("Gate.who") == ["anonymous", "", ""]
        for method in ("by_id", "by_name", "known"):
            with pytest.raises(rrpc.PermissionDenied):
                client.call(f"Gate.{method}")


def test_a_token_may_go_over_tls(tmp_path: Path) -> None:
    from rrpc.interceptors import ClientToken

    parties = Parties.meet(tmp_path)
    options = parties.of_client() | {"interceptors": [ClientToken("secret")]}
    with (
        rrpc.serve(Gate(), listen="tcps://127.0.0.1:0", **parties.of_server()) as server,
        rrpc.connect(server.addresses[0], **options) as client,
    ):
        assert client.call("Gate.known") == "in"
    with (
        rrpc.serve(Gate(), listen="tcp://127.0.0.1:0") as server,
        rrpc.connect(server.addresses[0], interceptors=options["interceptors"]) as client,
        pytest.raises(rrpc.FailedPrecondition, match="clear"),
    ):
        client.call("Gate.who")
