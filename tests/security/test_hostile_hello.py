"""Fields of HELLO that are too long or malformed: one clear error, or no notice at all, and the server goes on."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from certificates import Parties
from raw_peer import HELLO, RawPeer, hello, hello_fields, message, setup
from tls_service import Vault, port_of

import rrpc

LONG = b"\x1b[2J\r\n" + b"x" * 7000


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    return Parties.meet(tmp_path_factory.mktemp("parties"))


@pytest.fixture(scope="module")
def clear() -> Iterator[rrpc.Server]:
    with rrpc.serve(Vault(), listen="tcp://127.0.0.1:0") as server:
        yield server


MALFORMED: dict[str, tuple[bytes, str]] = {
    "a long window": (hello(window=LONG), "a HELLO whose window is '"),
    "a window of nothing": (hello(window=b"0,0"), "a HELLO whose window is '0,0'"),
    "a long number of buffers": (hello(buffers=LONG), "a HELLO whose buffers are '"),
    "a field that announces more than comes": (message(HELLO, b"\xff\xff" + bytes(500)), "truncated HELLO"),
    "a name without its value": (message(HELLO, b"\x04\x00wire"), "truncated HELLO"),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_field_ends_its_connection_alone(clear: rrpc.Server, what: str) -> None:
    said, reason = MALFORMED[what]
    peer = RawPeer(clear.addresses[0], greet=False)
    peer.send(setup() + said)
    why = peer.wait_for_end()
    assert reason in why
    assert why.isprintable()
    assert len(why) < 200
    with rrpc.connect(clear.addresses[0]) as client:
        assert client.call("Vault.add", 1, 2) == 3


@pytest.mark.parametrize(
    "field", ["rdma_security", "intro", "proof", "wire", "serves", "borrows", "unheard_of"]
)
def test_a_long_field_that_means_nothing_here_does_no_harm(clear: rrpc.Server, field: str) -> None:
    """Introductions are for the ways beside TLS: elsewhere nobody looks at what they say."""
    peer = RawPeer(clear.addresses[0], greet=False)
    peer.send(setup() + hello(**{field: LONG}))
    kind, body = peer.read_message()
    assert kind == HELLO
    assert hello_fields(body)["instance"]
    peer.close()
    with rrpc.connect(clear.addresses[0]) as client:
        assert client.call("Vault.add", 1, 2) == 3


@contextmanager
def _answering(parties: Parties, **fields: bytes) -> Iterator[str]:
    """The address of a server over TLS that answers one client with these fields in its HELLO."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(parties.server.cert, parties.server.key)
    context.set_alpn_protocols(["rrpc/1"])

    def answer() -> None:
        plain, _ = listener.accept()
        with context.wrap_socket(plain, server_side=True) as client:
            client.sendall(setup() + hello(**fields))
            while client.recv(1 << 16):
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        yield f"rrpcs://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize("said", [LONG, b"", b"Encrypt", b"none,encrypt", b"\0", "\u00e9".encode() * 3000])
def test_a_server_with_an_odd_rdma_security(parties: Parties, said: bytes) -> None:
    """The client stays on TCP, and says in one short line why."""
    with (
        _answering(parties, rdma_security=said, verbs=b"10.0.0.1:1") as address,
        rrpc.connect(address, rdma_security="encrypt", **parties.of_client()) as client,
    ):
        info = client.info()
        assert info["transport"] == "tcp"
        why = info["why_not"]["verbs"]
        assert why.startswith("the peer's rdma_security is '")
        assert why.endswith("it may be none, identity, sign, encrypt")
        assert why.isprintable()
        assert len(why) < 200


def _over_tls(parties: Parties, address: str, send: Callable[[ssl.SSLSocket], None]) -> bytes:
    """Everything that the server answers a client with a good certificate that says this."""
    context = ssl.create_default_context(cafile=str(parties.authority.path))
    context.load_cert_chain(parties.client.cert, parties.client.key)
    context.set_alpn_protocols(["rrpc/1"])
    answer = b""
    with (
        socket.create_connection(("127.0.0.1", port_of(address)), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as client,
    ):
        send(client)
        while part := client.recv(1 << 16):
            answer += part
            if b"instance" in answer:
                break
    return answer


def test_long_introductions_over_tls_itself(parties: Parties) -> None:
    """A client that TLS has let in says that it was introduced: over TLS that means nothing."""
    fields = {"intro": LONG[:2500], "proof": LONG[:2500], "rdma_security": LONG[:2500]}
    with rrpc.serve(Vault(), listen="rrpcs://127.0.0.1:0", **parties.of_server()) as server:
        address = server.addresses[0]
        answer = _over_tls(parties, address, lambda client: client.sendall(setup() + hello(**fields)))
        assert b"refused" not in answer
        assert b"instance" in answer
        with rrpc.connect(address, **parties.of_client()) as client:
            assert client.call("Vault.add", 1, 2) == 3
