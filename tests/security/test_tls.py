"""Calls over TLS: the same as in clear, and nobody reads along."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from certificates import Parties
from tls_service import Proxy, Vault, port_of

import rrpc
import rrpc.aio

SECRET = "the combination is 4-8-15-16-23-42"


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    return Parties.meet(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module", params=["tcps", "rrpcs"])
def server(request: pytest.FixtureRequest, parties: Parties) -> Iterator[rrpc.Server]:
    with rrpc.serve(Vault(), listen=f"{request.param}://127.0.0.1:0", **parties.of_server()) as server:
        yield server


def test_nobody_reads_along(server: rrpc.Server, parties: Parties) -> None:
    marked = np.frombuffer(SECRET.encode() * 50_000, np.float64)
    with Proxy(port_of(server.addresses[0])) as proxy:
        address = f"{server.addresses[0].partition(':')[0]}://127.0.0.1:{proxy.port}"
        with rrpc.connect(address, transports="tcp", **parties.of_client()) as client:
            assert client.call("Vault.text", SECRET) == SECRET[::-1]
            assert np.array_equal(client.call("Vault.double", marked), marked * 2)
        assert len(proxy.seen) > 2 * marked.nbytes
        for word in (b"combination", b"Vault", b"noitanibmoc"):
            assert word not in proxy.seen


def test_in_clear_the_proxy_reads_along() -> None:
    """So that the test above can fail."""
    with (
        rrpc.serve(Vault(), listen="tcp://127.0.0.1:0") as server,
        Proxy(port_of(server.addresses[0])) as proxy,
    ):
        with rrpc.connect(f"tcp://127.0.0.1:{proxy.port}") as client:
            assert client.info()["security"] == "none"
            client.call("Vault.text", SECRET)
        assert b"combination" in proxy.seen


def test_what_protects_is_told(server: rrpc.Server, parties: Parties) -> None:
    with rrpc.connect(server.addresses[0], transports="tcp", **parties.of_client()) as client:
        assert client.info()["security"].startswith("TLSv1.3 TLS_AES_256_GCM")
        assert client.info()["address"] == server.addresses[0]


@pytest.mark.parametrize("size", [0, 1, 2047, 2048, 16_384, 16_385, 200_000, 1 << 20, 3_000_001])
def test_arrays_of_any_size(server: rrpc.Server, parties: Parties, size: int) -> None:
    values = np.arange(size, dtype=np.float64)
    with rrpc.connect(server.addresses[0], transports="tcp", timeout=60, **parties.of_client()) as client:
        assert np.array_equal(client.call("Vault.double", values), values * 2)


def test_many_calls_at_a_time(server: rrpc.Server, parties: Parties) -> None:
    values = np.arange(100_000, dtype=np.float64)

    def work(client: rrpc.Client, number: int) -> bool:
        sums = [client.start("Vault.add", number, each) for each in range(200)]
        doubled = client.call("Vault.double", values + number)
        right = [each.result() for each in sums] == [number + each for each in range(200)]
        return right and np.array_equal(doubled, (values + number) * 2)

    with (
        rrpc.connect(server.addresses[0], transports="tcp", timeout=60, **parties.of_client()) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        assert all(pool.map(lambda number: work(client, number), range(32)))
        assert list(rrpc.open_stream(client, "Vault.count", 5000)) == list(range(5000))


def test_asyncio(server: rrpc.Server, parties: Parties) -> None:
    async def main() -> None:
        options = parties.of_client()
        async with await rrpc.aio.connect(server.addresses[0], transports="tcp", **options) as client:
            answers = await asyncio.gather(*(client.call("Vault.add", 1, each) for each in range(300)))
            assert answers == [1 + each for each in range(300)]

    asyncio.run(main())


def test_the_options_alone_turn_it_on(parties: Parties) -> None:
    options = parties.server.options()
    with rrpc.serve(Vault(), listen=["tcp://127.0.0.1:0", "rrpc://127.0.0.1:0"], **options) as server:
        assert [address.partition(":")[0] for address in server.addresses] == ["tcps", "rrpcs"]
        address = server.addresses[0].replace("tcps", "tcp")
        with rrpc.connect(address, tls_ca=str(parties.authority.path)) as client:
            assert client.info()["security"].startswith("TLSv1.3")
            assert client.info()["address"] == server.addresses[0]
            assert client.call("Vault.add", 1, 2) == 3


def test_a_client_of_the_same_host_moves_to_shared_memory(parties: Parties) -> None:
    with (
        rrpc.serve(Vault(), listen="rrpcs://127.0.0.1:0", **parties.of_server()) as server,
        rrpc.connect(server.addresses[0], **parties.of_client()) as client,
    ):
        assert client.info()["transport"] == "shm"
        assert client.info()["security"] == "same host"
        assert "TLS was asked for" in client.info()["why_not"].get("verbs", "TLS was asked for")
        assert client.call("Vault.add", 1, 2) == 3


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tls_ca": "/no/such.pem"}, "/no/such.pem: no authorities' certificates .*No such file"),
        ({"tls_ca": __file__}, "no authorities' certificates in PEM form can be read"),
        ({"tls_cert": "x.pem"}, "a certificate and its key go together, and the key is missing"),
        ({"tls_peer_name": ""}, None),
        ({"rdma_security": "much"}, "rdma_security is 'much'; it may be none, identity"),
    ],
)
def test_options_that_are_wrong(server: rrpc.Server, options: dict[str, Any], text: str | None) -> None:
    with pytest.raises(rrpc.InvalidArgument if text else rrpc.Unauthenticated, match=text):
        rrpc.connect(server.addresses[0], **options)


def test_a_path_may_be_a_path(server: rrpc.Server, parties: Parties) -> None:
    options: dict[str, Any] = {name: Path(value) for name, value in parties.of_client().items()}
    with rrpc.connect(server.addresses[0], **options) as client:
        assert client.call("Vault.add", 1, 2) == 3
    with pytest.raises(rrpc.InvalidArgument, match="option 'tls_ca' can't be 3"):
        rrpc.connect(server.addresses[0], tls_ca=3)


def test_a_server_needs_a_certificate() -> None:
    with pytest.raises(rrpc.InvalidArgument, match="a server needs a certificate and its key"):
        rrpc.serve(Vault(), listen="tcps://127.0.0.1:0")


def test_verbs_with_tls_needs_protection_and_protection_needs_tls(parties: Parties) -> None:
    for scheme in ("verbs", "verbs+tcp"):
        with pytest.raises(rrpc.InvalidArgument, match="it is 'none', and must be identity, sign or encrypt"):
            rrpc.connect(f"{scheme}://127.0.0.1:1", tls=True)
        with pytest.raises(rrpc.InvalidArgument, match="it is 'none', and must be identity, sign or encrypt"):
            rrpc.serve(Vault(), listen=f"{scheme}://127.0.0.1:0", **parties.of_server())
    for scheme in ("verbs", "verbs+tcp", "rrpc"):
        with pytest.raises(rrpc.InvalidArgument, match=r"rdma_security is 'sign', .* has no TLS"):
            rrpc.connect(f"{scheme}://127.0.0.1:1", rdma_security="sign")
        with pytest.raises(rrpc.InvalidArgument, match=r"rdma_security is 'sign', .* has no TLS"):
            rrpc.serve(Vault(), listen=f"{scheme}://127.0.0.1:0", rdma_security="sign")
