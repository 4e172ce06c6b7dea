"""Unary calls as the core has them: metadata, and what is known of a call that failed."""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from core_server import serving
from processes import child_environment, eventually, patience

import rrpc
from rrpc import _core
from rrpc._options import merged
from rrpc.metadata import pack

LIMIT = 8192


@pytest.fixture(scope="module")
def core_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The addresses of one core_server.py, by transport."""
    with serving() as (addresses, _):
        yield addresses


@pytest.fixture
def own_server(transport: str, short_tmp: Path) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """One that the test may end."""
    with serving(f"{short_tmp}/own.sock") as (addresses, process):
        yield addresses[transport], process


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
    received: Any = blocks or []
    assert [bytes(memoryview(block)) for block in received] == (buffers or [])
    assert client.call(b"echo", payload, None, None, 30.0, metadata)[0] == payload


class _Name(str):
    """Equal to a name, and not what a plain dict has."""


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"a": "b"},
        {"_.-9": b"", "empty": ""} | {f"name-{i}": "é€😀" for i in range(12)},
        *({"x" * n: "y" * n, "bytes": b"z" * n} for n in (31, 32, 255, 256, 2000)),
        {f"n{i}": str(i) for i in range(16)},
        {"several": ["a", b"b"], "one": ("c",)},
        {_Name("name"): _Name("value"), "array": bytearray(b"d"), "view": memoryview(b"e")},
        rrpc.Metadata({"a": "1", "b": [b"2", "3"]}),
        {"": "7"},
        {".a": "7"},
        {"-": "7"},
        {"Name": "7"},
        {"a\0": "7"},
        {7: "7"},
        {"a": 7},
        {"a": None},
        {"a": "\ud800"},
        {"\ud800": "a"},
        {"a": "7" * 70_000},
        {"a": b"7" * 70_000},
        [("a", "7")],
        7,
        None,
    ],
    ids=lambda metadata: repr(metadata)[:20],
)
def test_the_core_packs_as_python_does(connect: Callable[..., _core.Client], metadata: Any) -> None:
    client = connect(metadata_bytes_max=65535)
    try:
        packed = pack(metadata)
    except rrpc.InvalidArgument as refused:
        with pytest.raises(rrpc.InvalidArgument, match=re.escape(refused.message)):
            client.start(b"echo", b"", None, None, 30.0, metadata)
        return
    if len(packed) > LIMIT:
        with pytest.raises(rrpc.ResourceExhausted, match=f"the request has {len(packed)} bytes"):
            client.call(b"echo", b"", None, None, 30.0, metadata)
        return
    call = client.start(b"echo", b"", None, None, 30.0, metadata)
    call.result()
    assert call.metadata() == packed


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


def _gone(client: _core.Client) -> list[bytes]:
    return client.call(b"seen", b"", None, None, 30.0)[0].partition(b"|")[2].split(b",")


def _held(client: _core.Client, name: bytes) -> bool:
    return name in client.call(b"seen", b"", None, None, 30.0)[0].partition(b"|")[0].split(b",")


def test_a_handler_is_told_that_its_call_was_cancelled(connect: Callable[..., _core.Client]) -> None:
    watcher, client = connect(), connect()
    name = b"cancel%d" % id(client)
    call = client.start(b"hold", name, None, None, None)
    eventually(lambda: _held(watcher, name))
    assert name + b" cancelled" not in _gone(watcher)
    call.cancel()
    eventually(lambda: name + b" cancelled" in _gone(watcher))
    eventually(lambda: client.calls_in_flight() == 0, what="the cancel to be acknowledged")
    assert not [line for line in _gone(watcher) if name in line and not line.endswith(b" cancelled")]


def test_a_handler_is_told_of_its_deadline_by_a_silent_client(
    connect: Callable[..., _core.Client], core_server: dict[str, str], transport: str
) -> None:
    watcher = connect()
    name = b"silent%d" % id(watcher)
    code = f"""
import os, signal
from rrpc import _core
from rrpc._options import merged
client = _core.Client({core_server[transport]!r}, merged({{}}), 20.0)
call = client.start(b"hold", {name!r}, None, None, 1.0)
os.kill(os.getpid(), signal.SIGSTOP)
"""
    with subprocess.Popen([sys.executable, "-c", code], env=child_environment()) as silent:
        eventually(lambda: name + b" cancelled" in _gone(watcher))
        silent.kill()


def test_a_handler_is_told_of_its_clients_end(
    connect: Callable[..., _core.Client], core_server: dict[str, str], transport: str
) -> None:
    watcher = connect()
    name = b"end%d" % id(watcher)
    client = connect()
    client.start(b"hold", name, None, None, None)
    eventually(lambda: _held(watcher, name))
    client.close()
    eventually(lambda: name + b" cancelled" in _gone(watcher))


def test_a_cancel_stops_reads_and_leaves_nothing_exposed(connect: Callable[..., _core.Client]) -> None:
    def there(name: str) -> int:
        lines = watcher.call(b"counts", b"", None, None, 30.0)[0].decode().splitlines()
        return {line.split()[0]: int(line.split()[1]) for line in lines}[name]

    watcher, client = connect(), connect(read_depth=1)
    before = {name: _core.stats()[name] for name in ("exposures_live", "bytes_exposed")}
    used, read = there("pool_bytes_used"), there("bytes_read")
    large = bytearray(64 << 20)
    for _ in range(4):
        call = client.start(b"echo", b"", [large], None, None)
        eventually(lambda: there("pool_bytes_used") > used, what="the server to take it")
        call.cancel()
        eventually(lambda: client.calls_in_flight() == 0)
        assert {name: _core.stats()[name] for name in before} == before
        eventually(lambda: there("pool_bytes_used") == used)
    large.append(0)  # nobody holds it any more
    assert there("bytes_read") - read < 4 * (64 << 20), "some of it was never fetched"


def test_a_client_knows_when_it_can_call_no_more(
    own_server: tuple[str, "subprocess.Popen[str]"],
) -> None:
    address, process = own_server
    told: list[str] = []

    def connect(name: str) -> _core.Client:
        client = _core.Client(address, merged({}), 20.0)
        client.on_unusable(lambda: told.append(name))
        assert client.usable()
        return client

    closed, killed = connect("closed"), connect("killed")
    closed.close()
    assert not closed.usable()
    eventually(lambda: told == ["closed"])
    closed.on_unusable(lambda: told.append("at once"))
    eventually(lambda: told == ["closed", "at once"])
    process.kill()
    eventually(lambda: not killed.usable())
    eventually(lambda: told == ["closed", "at once", "killed"])


def test_after_a_goaway_calls_end_and_new_ones_are_refused(
    own_server: tuple[str, "subprocess.Popen[str]"],
) -> None:
    address, _ = own_server
    told: list[str] = []
    client = _core.Client(address, merged({}), 20.0)
    client.on_unusable(lambda: told.append("goaway"))
    held, late = (client.start(b"hold", b"held", None, None, timeout) for timeout in (None, 1.0))
    eventually(lambda: client.call(b"seen", b"", None, None, 30.0)[0].startswith(b"held"))
    assert client.calls_in_flight() >= 1
    client.call(b"drain", b"", None, None, 30.0)
    eventually(lambda: not client.usable())
    eventually(lambda: told == ["goaway"])
    with pytest.raises(rrpc.Unavailable, match="takes no new calls: shutting down") as refused:
        client.call(b"echo", b"", None, None, 30.0)
    assert refused.value.not_executed
    with pytest.raises(rrpc.DeadlineExceeded) as ended:
        late.result()
    assert not ended.value.not_executed
    eventually(lambda: client.calls_in_flight() == 1)
    assert not held.done()


@pytest.mark.parametrize("buffers", [None, [b"a" * 3_000_000]], ids=["plain", "bulk"])
def test_a_traced_call_knows_when_its_phases_were(connect: Callable[..., _core.Client], buffers: Any) -> None:
    client = connect()
    call = client.start(b"stamps", b"", buffers, None, 30.0)
    call.result()
    assert call.stamps() is None
    before = time.monotonic_ns()
    call = client.start(b"stamps", b"", buffers, None, 30.0, traced=True)
    assert call.stamps() is None or call.done()
    there = [int(at) for at in call.result()[0].split()]
    after = time.monotonic_ns()
    here = list(call.stamps() or ())
    assert len(here) == 6
    assert [before, *here, after] == sorted([before, *here, after])
    assert there == sorted(there)
    sent, replied = here[2], here[3]
    assert sent <= there[2] <= replied, "a worker took it after it was sent, and replied"
    failed = client.start(b"fail", b"", buffers, None, 30.0, traced=True)
    with pytest.raises(rrpc.Aborted):
        failed.result()
    assert all(failed.stamps() or ())
    never = connect(calls_in_flight_max=0)
    with pytest.raises(rrpc.ResourceExhausted):
        never.start(b"echo", b"", None, None, 30.0, traced=True)
