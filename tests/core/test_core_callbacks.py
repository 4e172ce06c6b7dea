"""Calls from a server to its client, over the connection that the client made."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import core_server
import pytest
from core_server import serving
from lab import settles, transient
from processes import child_environment, eventually

import rrpc
from rrpc import _core
from rrpc._options import merged


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Of one core_server.py, by transport."""
    with serving() as (addresses, _):
        yield addresses


@pytest.fixture
def connect(addresses: dict[str, str], transport: str) -> Iterator[Callable[[], _core.Client]]:
    """Clients that take calls, with the methods of core_server.py at this end too."""
    server = _core.Server(merged({}))
    core_server.workers(server)
    clients: list[_core.Client] = []

    def make() -> _core.Client:
        clients.append(_core.Client(addresses[transport], merged({}), 20.0, server))
        return clients[-1]

    yield make
    for client in clients:
        client.close()
    server.stop()


@pytest.mark.parametrize("depth", range(5))
@pytest.mark.parametrize("buffers", [None, [b"a" * 3_000_000]], ids=["plain", "bulk"])
def test_calls_nest_both_ways(connect: Callable[[], _core.Client], depth: int, buffers: Any) -> None:
    before = transient(_core.stats())
    reply, blocks = connect().call(b"down", b"%d" % depth, buffers, None, 30.0)
    assert reply == b" ".join(b"%d" % i for i in range(depth + 1))
    received: Any = blocks or []
    assert [bytes(memoryview(block)) for block in received] == (buffers or [])
    blocks = received = None
    settles(_core.stats, before)


def test_a_client_that_does_not_serve_is_not_called(addresses: dict[str, str], transport: str) -> None:
    client = _core.Client(addresses[transport], merged({}), 20.0)
    with pytest.raises(rrpc.FailedPrecondition, match="connected without serve="):
        client.call(b"down", b"1", None, None, 30.0)
    with pytest.raises(TypeError, match="serve must be a Server"):
        _core.Client(addresses[transport], merged({}), 20.0, client)  # type: ignore[arg-type]
    client.close()


def test_a_client_that_goes_ends_the_calls_to_it(addresses: dict[str, str], transport: str) -> None:
    watcher = _core.Client(addresses[transport], merged({}), 20.0)
    code = f"""
from rrpc import _core
from rrpc._options import merged
server = _core.Server(merged({{}}))
client = _core.Client({addresses[transport]!r}, merged({{}}), 20.0, server)
client.start(b"down", b"77", None, None, None)
server.next()
print("called back", flush=True)
server.next()
"""
    before = _gone(watcher).count(b"77 Unavailable")
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=child_environment()) as doomed:
        assert doomed.stdout is not None
        assert doomed.stdout.readline() == "called back\n"
        doomed.kill()
    eventually(lambda: _gone(watcher).count(b"77 Unavailable") == before + 1)
    watcher.close()


def test_a_callback_is_given_up_with_its_call(connect: Callable[[], _core.Client]) -> None:
    client = connect()
    with pytest.raises(rrpc.DeadlineExceeded):
        # Nine deep needs more workers than either end has.
        client.call(b"down", b"99", None, None, 0.5)
    eventually(lambda: client.calls_in_flight() == 0)
    assert client.call(b"down", b"3", None, None, 30.0)[0] == b"0 1 2 3"


def test_a_peer_stays_after_the_reply_and_closing_it_closes_nothing(
    addresses: dict[str, str], transport: str, short_tmp: Path
) -> None:
    here = _core.Server(merged({}))
    core_server.workers(here)
    there = _core.Server(merged({}))
    address = there.listen(f"shm://{short_tmp}/there.sock" if transport == "shm" else "tcp://127.0.0.1:0")
    client = _core.Client(address, merged({}), 20.0, here)
    call = client.start(b"any", b"", None, None, 30.0)
    request = there.next(20.0)
    assert request is not None
    first, second = there.peer(request[0]), there.peer(request[0])
    there.reply(request[0], b"")
    assert call.result(20.0)[0] == b""
    first.close()
    assert not first.usable()
    assert second.usable()
    assert second.call(b"echo", b"still here", None, None, 20.0)[0] == b"still here"
    told: list[str] = []
    second.on_unusable(lambda: told.append("gone"))
    client.close()
    eventually(lambda: told == ["gone"])
    with pytest.raises(rrpc.Unavailable):
        second.call(b"echo", b"", None, None, 20.0)
    with pytest.raises(rrpc.NotFound):
        there.peer(request[0])
    here.stop()
    there.stop()


def _gone(client: _core.Client) -> list[bytes]:
    return client.call(b"seen", b"", None, None, 30.0)[0].partition(b"|")[2].split(b",")
