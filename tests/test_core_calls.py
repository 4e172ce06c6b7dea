"""Unary calls as the core has them: metadata, and what is known of a call that failed."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import TRANSPORTS, address_to_listen_on
from processes import child_environment, patience

import rrpc
from rrpc import _core
from rrpc.metadata import pack
from rrpc.options import merged

SERVER = Path(__file__).parent / "core_server.py"
LIMIT = 8192


@pytest.fixture(scope="module")
def core_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The addresses of one core_server.py, by transport."""
    shm_name = f"rrpc-core-{tmp_path_factory.mktemp('core').parent.name}"
    command = [sys.executable, str(SERVER), *(address_to_listen_on(t, shm_name) for t in TRANSPORTS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=child_environment()) as process:
        assert process.stdout is not None
        yield {transport: process.stdout.readline().strip() for transport in TRANSPORTS}
        process.kill()


@pytest.fixture
def connect(core_server: dict[str, str], transport: str) -> Iterator[Callable[..., _core.Client]]:
    clients: list[_core.Client] = []

    def make(**options: Any) -> _core.Client:
        clients.append(_core.Client(core_server[transport], merged(options), patience(10.0)))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.mark.parametrize("metadata", [b"", b"m", b"\0binary\xff" * 20, b"m" * LIMIT], ids=len)
@pytest.mark.parametrize("payload", [b"", b"p" * 50, b"p" * 9000], ids=len)
@pytest.mark.parametrize("buffers", [None, [b"a" * 50_000]], ids=["plain", "bulk"])
def test_metadata_goes_both_ways(
    connect: Callable[..., _core.Client], metadata: bytes, payload: bytes, buffers: Any
) -> None:
    client = connect()
    call = client.start(b"echo", payload, buffers, None, 30.0, metadata)
    reply, blocks = call.result()
    assert (reply, call.metadata()) == (payload, metadata)
    assert [bytes(memoryview(block)) if block else b"" for block in blocks or []] == (buffers or [])
    assert client.call(b"echo", payload, None, None, 30.0, metadata)[0] == payload


def test_an_error_has_metadata_too(connect: Callable[..., _core.Client]) -> None:
    with pytest.raises(rrpc.Aborted, match="as asked") as caught:
        connect().call(b"fail", b"", None, None, 30.0, pack({"why": "so"}))
    assert caught.value.metadata == {"why": "so"}
    assert not caught.value.not_executed, "a handler has seen it"


def test_a_server_can_say_that_no_handler_has_seen_a_call(connect: Callable[..., _core.Client]) -> None:
    with pytest.raises(rrpc.Unauthenticated, match="before a handler") as caught:
        connect().call(b"refuse", b"", None, None, 30.0)
    assert caught.value.not_executed


def test_metadata_has_a_limit_at_both_ends(connect: Callable[..., _core.Client]) -> None:
    client = connect()
    with pytest.raises(
        rrpc.ResourceExhausted, match="metadata_bytes_max: the request has 8193 bytes"
    ) as caught:
        client.call(b"echo", b"", None, None, 30.0, b"m" * (LIMIT + 1))
    assert caught.value.not_executed
    generous = connect(metadata_bytes_max=65535)
    with pytest.raises(
        rrpc.ResourceExhausted, match="metadata_bytes_max: the request has 9000 bytes"
    ) as caught:
        generous.call(b"echo", b"", None, None, 30.0, b"m" * 9000)
    assert caught.value.not_executed, "the server refused it"
    with pytest.raises(
        rrpc.ResourceExhausted, match="metadata_bytes_max: the reply has 8193 bytes"
    ) as caught:
        generous.call(b"much", b"8193", None, None, 30.0)
    assert not caught.value.not_executed
    strict = connect(metadata_bytes_max=100)
    with pytest.raises(rrpc.ResourceExhausted, match="metadata_bytes_max: the reply has 101 bytes"):
        strict.call(b"much", b"101", None, None, 30.0)
    assert strict.call(b"echo", b"goes on", None, None, 30.0)[0] == b"goes on"
    with pytest.raises(rrpc.InvalidArgument, match="metadata_bytes_max can be at most 65535"):
        connect(metadata_bytes_max=65536)


def test_a_call_that_was_never_sent_says_so(connect: Callable[..., _core.Client]) -> None:
    client = connect(calls_in_flight_max=0)
    with pytest.raises(rrpc.ResourceExhausted, match="calls_in_flight_max") as caught:
        client.call(b"echo", b"", None, None, 30.0)
    assert caught.value.not_executed
    client.close()
    with pytest.raises(rrpc.Unavailable) as closed:
        client.call(b"echo", b"", None, None, 30.0)
    assert closed.value.not_executed
