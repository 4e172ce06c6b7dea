"""Clients and servers of two versions of an interface: what they agree on when they connect."""

import asyncio
import contextlib
import decimal
import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import numpy as np
import pytest
from impostor import wake_and_close
from lab import address_to_listen_on
from processes import ServeFactory, patience
from raw_peer import CALL, REPLY, REQUEST, RawPeer, hello, message, reply, setup
from two_versions import (
    CLIENTS,
    NEW,
    OLD,
    OTHER,
    PRINTS,
    client_of,
    connect_as,
    generate,
    make_module,
    named,
)

import rrpc
from rrpc._channel.versions import ANSWER_BYTES_MAX
from rrpc.codec import Message, encode
from rrpc.schema import Service, fingerprint, fingerprints, service_of
from rrpc.schema.compatibility import changes, methods

TRANSPORTS = ("shm", "tcp", "rrpc")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, str]]]:
    """A process for each version, and its address by transport."""
    folder = tmp_path_factory.mktemp("versions")
    factory = ServeFactory(folder, address_to_listen_on)
    addresses = {}
    for name, text in {"old": OLD, "new": NEW, "other": OTHER}.items():
        addresses[name] = dict(
            zip(TRANSPORTS, factory(text, "Rows", listen=TRANSPORTS).addresses, strict=True)
        )
    yield addresses
    factory.close()


@pytest.fixture(params=TRANSPORTS)
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# Two versions in all four combinations


def test_old_client_and_old_server(servers: dict[str, dict[str, str]], scheme: str) -> None:
    old = CLIENTS["old"]
    with connect_as("old", servers["old"][scheme]) as client:
        assert client.put(old.Row(1, "x"), tag="yes") == [old.Row(1, "x"), old.Row(3, "yes")]
        assert client.find("p") == "p"
        assert client.kind(old.Kind.B) is old.Kind.B
        assert client.double(np.ones(9000, np.float32)).sum() == 18000


def test_new_client_and_new_server(servers: dict[str, dict[str, str]], scheme: str) -> None:
    new = CLIENTS["new"]
    with connect_as("new", servers["new"][scheme]) as client:
        assert client.put(new.Row(1, 2.0), 3, first=False)[1] == new.Row(1, 3, ["t", "False"])
        assert (client.find("p"), client.find(5, 6), client.count()) == ("p 7", "5 6", 42)
        assert client.double(np.ones(9000, np.float32), by=3.0).sum() == 27000


def test_old_client_and_new_server(servers: dict[str, dict[str, str]], scheme: str) -> None:
    old = CLIENTS["old"]
    with connect_as("old", servers["new"][scheme]) as client:
        # The note is dropped there and weight and tags here; the new parameters have their defaults.
        assert client.put(old.Row(1, "x"), tag="yes") == [old.Row(1, "none"), old.Row(3, "none")]
        assert client.find("p") == "p 7"
        assert client.kind(old.Kind.B) is old.Kind.B
        out = np.zeros(9000, np.float32)
        assert client.double(np.ones(9000, np.float32), out=out) is out
        assert out.sum() == 18000
        assert client.find.start("q").result() == "q 7"


def test_new_client_and_old_server(servers: dict[str, dict[str, str]], scheme: str) -> None:
    new = CLIENTS["new"]
    with connect_as("new", servers["old"][scheme]) as client:
        assert client.put(new.Row(1, 2.0, ["z"]), tag="yes") == [new.Row(1), new.Row(3)]
        assert client.find("p") == "p"
        assert client.kind(new.Kind.B) is new.Kind.B
        out = np.zeros(9000, np.float32)
        assert client.double(np.ones(9000, np.float32), out=out) is out
        assert out.sum() == 18000
        # What only the new version has fails where it is used, and says so.
        with pytest.raises(rrpc.Unimplemented, match=r"lab\.Rows has no method 'count'"):
            client.count()
        with pytest.raises(rrpc.Unimplemented) as raised:
            client.put(new.Row(1), 3)
        assert str(raised.value) == (
            "lab.Rows.put(): the server's version has no parameter 'copies': leave it out, or have the server updated"
        )
        with pytest.raises(rrpc.Unimplemented, match="'limit'"):
            client.find.start("p", 8)
        with pytest.raises(rrpc.InvalidArgument, match="prefix"):
            client.find(5)
        with pytest.raises(rrpc.InvalidArgument, match="kind"):
            client.kind(new.Kind.C)


def test_incompatible_versions_fail_at_connect(servers: dict[str, dict[str, str]], scheme: str) -> None:
    address = servers["other"][scheme]
    other = fingerprint(service_of(make_module("rows_other", OTHER).Rows))
    with pytest.raises(rrpc.FailedPrecondition) as raised:
        connect_as("old", address)
    assert str(raised.value) == (
        f"lab.Rows: this client's version of the interface ({PRINTS['old']}) doesn't fit the one at {address} "
        f"({other}). From the client's to the server's: lab.Rows.find(prefix): string is now int; lab.Row.id: int is "
        f"now string. Generate the client again with rrpc-gen, or have the server updated"
    )
    with rrpc.connect(address, timeout=20.0) as untyped:  # which nobody compares
        assert untyped.call("lab.Rows.kind", 2) == 2


def test_differences_are_in_the_log(
    servers: dict[str, dict[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "rrpc.client"):
        connect_as("new", servers["new"]["tcp"]).close()
        assert caplog.messages == []  # equal is silent
        connect_as("new", servers["old"]["tcp"]).close()
    assert (
        "lab.Rows: from the client's version to the server's: lab.Rows.count(): the method is gone"
        in caplog.messages
    )


# Where there is little to go by


def test_a_server_without_the_service_is_no_reason_not_to_connect() -> None:
    service = named("Else", "x")()
    with rrpc.serve(service, listen="tcp://127.0.0.1:0") as s, connect_as("old", s.addresses[0]) as client:
        assert client.call("Else.who") == "x"
        with pytest.raises(rrpc.Unimplemented, match=r"there is no service 'lab\.Rows' here"):
            client.find("p")


def test_a_server_that_describes_nothing() -> None:
    service = sys.modules["rows_old"].Rows()
    with rrpc.Server(service, listen="tcp://127.0.0.1:0", builtin=False) as server:
        address = server.addresses[0]
        with connect_as("old", address) as client:
            assert client.kind(CLIENTS["old"].Kind.A) == 1
        with pytest.raises(rrpc.FailedPrecondition) as raised:
            connect_as("new", address)
        assert str(raised.value) == (
            f"lab.Rows: the server at {address} doesn't have this client's version of the interface "
            f"({PRINTS['new']}), and whether its own fits can't be told: it describes none (builtin=False, "
            f"--no-builtin). Generate the client from the server's version with rrpc-gen, or call by name with "
            f"rrpc.connect(), which compares nothing"
        )


STREAMING = """
from collections.abc import Iterator
import rrpc

@rrpc.service
class S:
    @rrpc.method
    def get(self, a: {argument}) -> int:
        return 1

    @rrpc.method
    def items(self, n: {taken}) -> {given}:
        raise rrpc.Unimplemented("no items")
"""
STREAMS = {
    "received": ("int", "Iterator[int]"),
    "sent": ("Iterator[int]", "int"),
    "both": ("Iterator[int]", "Iterator[int]"),
}


@pytest.mark.parametrize("style", ["SClient", "AsyncSClient"])
@pytest.mark.parametrize("what", STREAMS)
def test_services_with_streams_are_compared_too(what: str, style: str) -> None:
    taken, given = STREAMS[what]

    def service(argument: str) -> Any:
        text = STREAMING.format(argument=argument, taken=taken, given=given)
        return make_module(f"s_{what}_{argument}", text).S

    old, new = service("int"), service("str")
    with rrpc.serve(old(), listen="tcp://127.0.0.1:0") as server:
        connect_and_close(getattr(generate(old), style), server.addresses[0])
        with pytest.raises(rrpc.FailedPrecondition, match=r"S\.get\(a\): string is now int"):
            connect_and_close(getattr(generate(new), style), server.addresses[0])


def connect_and_close(kind: Any, address: str) -> None:
    async def in_loop() -> None:
        async with kind(address):
            pass

    if issubclass(kind, rrpc.Client):
        kind(address).close()
    else:
        asyncio.run(in_loop())


def test_fingerprints_that_a_small_slot_has_no_room_for() -> None:
    services = [named(f"Service{i}", str(i))() for i in range(40)]
    with rrpc.Server(*services, listen="tcp://127.0.0.1:0") as server:
        assert len(RawPeer(server.addresses[0]).hello["fingerprints"]) == 16 * 43
        small = RawPeer(server.addresses[0], slot_bytes=512).hello
        assert "fingerprints" not in small
        assert small.keys() >= {"wire", "host", "instance"}
        with client_of("Service7")(server.addresses[0], slot_bytes=512) as client:
            assert client.who() == "7"
        with client_of("Service7")(server.addresses[0]) as client:
            assert client.who() == "7"


def test_connecting_waits_no_longer_than_it_may() -> None:
    """Of a server that answers no call, so that no description comes."""
    gone = threading.Event()

    def greet(listener: socket.socket) -> None:
        with listener.accept()[0] as connection:
            connection.sendall(setup() + hello(fingerprints=bytes(16)))
            with contextlib.suppress(OSError):
                while connection.recv(1 << 16):
                    pass
            gone.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=greet, args=(listener,), daemon=True).start()
        with pytest.raises(rrpc.DeadlineExceeded, match=r"rrpc\.Reflection\.describe") as raised:
            connect_as("old", f"tcp://127.0.0.1:{listener.getsockname()[1]}", connect_timeout=0.3)
        assert gone.wait(patience(20))  # though the traceback holds the client
    del raised


# Servers that say odd things


def _answer(connection: socket.socket, greeting: bytes, description: bytes) -> None:
    peer = RawPeer.__new__(RawPeer)
    peer.socket, peer.reason = connection, ""
    connection.sendall(greeting)
    calls = 0
    try:
        while True:
            kind, body = peer.read_message()
            if kind == CALL:
                calls += 1
                call_id = REQUEST.unpack_from(body)[0]
                payload = description if b"describe" in body else msgpack.packb("hi")
                connection.sendall(message(REPLY, reply(call_id, payload), data=calls))
    except (EOFError, OSError):
        connection.close()


@pytest.fixture
def odd_server() -> Iterator[Callable[[bytes, Any], str]]:
    """Serves nothing but a greeting, a description, and "hi"."""
    listeners: list[socket.socket] = []

    def make(greeting: bytes, description: Any = None) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def run() -> None:
            try:
                while True:
                    connection = listener.accept()[0]
                    arguments = (connection, setup() + greeting, encode(description, Message()))
                    threading.Thread(target=_answer, args=arguments, daemon=True).start()
            except OSError:
                return

        threading.Thread(target=run, daemon=True).start()
        return f"tcp://127.0.0.1:{listener.getsockname()[1]}"

    yield make
    wake_and_close(*listeners)


PRINT = bytes.fromhex(PRINTS["old"])
# Whether the client's own is found in it, so that it needn't ask.
FIELDS: dict[str, tuple[bytes, bool]] = {
    "empty": (b"", False),
    "cut short": (PRINT[:-1], False),
    "in the middle": (b"x" + PRINT, False),
    "cut short behind": (PRINT + b"\0\0\0", True),
    "others": (bytes(range(160)), False),
    "long": (bytes(8000), False),
    "second": (bytes(16) + PRINT, True),
    "past the last one": (bytes(16 * 256) + PRINT, False),
}


@pytest.mark.parametrize("what", FIELDS)
def test_odd_fingerprints_in_hello(odd_server: Callable[..., str], what: str) -> None:
    field, found = FIELDS[what]
    greeting = hello(fingerprints=field)
    with connect_as("old", odd_server(greeting, _description())) as client:
        assert client.find("p") == "hi"
    # Whoever asks this one is refused.
    expected = (
        contextlib.nullcontext() if found else pytest.raises(rrpc.FailedPrecondition, match="can't be read")
    )
    with expected, connect_as("old", odd_server(greeting, b"")) as client:
        assert client.find("p") == "hi"


DEEP: Any = "int"
for _ in range(60):
    DEEP = {"list": DEEP}


def _description(**changes: Any) -> dict[str, Any]:
    method = {"name": "find", "parameters": [{"name": "prefix", "type": "string"}], "result": "string"}
    return {"version": 1, "service": {"name": "lab.Rows", "methods": [method], **changes}}


DESCRIPTIONS = {
    "nothing": None,
    "a number": 3,
    "an empty map": {},
    "a list": [1, 2],
    "an array": np.zeros(3),
    "a version that compares with nothing": {"version": decimal.Decimal("sNaN")},
    "no service": {"version": 1, "service": {}},
    "a later version": {"version": 9, "service": {"name": "x", "kinds": "unknown"}},
    "an unknown type": _description(methods=[{"name": "find", "result": {"tensor": "f32"}}]),
    "a name of nothing": _description(methods=[{"name": "find", "result": {"named": "lab.No"}}]),
    "deep": _description(methods=[{"name": "find", "result": DEEP}]),
}


@pytest.mark.parametrize("what", DESCRIPTIONS)
def test_odd_descriptions(odd_server: Callable[..., str], what: str) -> None:
    with pytest.raises(rrpc.FailedPrecondition, match="can't be told: its description can't be read: "):
        connect_as("old", odd_server(hello(), DESCRIPTIONS[what]))


def _one_ofs(count: int, alternatives: Callable[[Any], list[Any]]) -> dict[str, Any]:
    """A description with one-ofs, each with such alternatives of the next one."""
    declared: dict[str, Any] = {
        f"X{i}": {"kind": "oneof", "name": f"X{i}", "alternatives": alternatives({"named": f"X{i + 1}"})}
        for i in range(count)
    }
    declared[f"X{count}"] = {"kind": "enum", "name": f"X{count}", "members": [{"name": "a", "value": 1}]}
    return _description(methods=[{"name": "find", "result": {"named": "X0"}}], declarations=declared)


@pytest.mark.parametrize(
    ("alternatives", "why"),
    [
        (lambda following: [following, following], "expand to more than"),
        (lambda following: [{"list": {"optional": following}}], "nested deeper than"),
    ],
)
def test_descriptions_that_expand_without_end(
    odd_server: Callable[..., str], alternatives: Callable[[Any], list[Any]], why: str
) -> None:
    with pytest.raises(rrpc.FailedPrecondition, match=f"its description can't be read: .*types .*{why}"):
        connect_as("old", odd_server(hello(), _one_ofs(60, alternatives)))


def test_long_descriptions_are_not_read() -> None:
    @rrpc.service(name="rrpc.Reflection")
    class Wordy:
        doc = "x" * ANSWER_BYTES_MAX

        @rrpc.method
        def describe(self, service: str) -> dict[str, Any]:
            return _description(doc=self.doc)

    wordy = Wordy()
    with rrpc.serve(wordy, listen="tcp://127.0.0.1:0", builtin=False) as server:
        why = rf"can't be told: its description can't be read: .*419\d+ bytes, and at most {ANSWER_BYTES_MAX} are read"
        with pytest.raises(rrpc.FailedPrecondition, match=why):
            connect_as("old", server.addresses[0])
        wordy.doc = wordy.doc[500:]
        connect_as("old", server.addresses[0]).close()


def test_errors_show_long_types_in_part(odd_server: Callable[..., str]) -> None:
    result = {"tuple": ["int"] * 1000}
    parameters = [{"name": "prefix", "type": "string"}]
    long = _description(methods=[{"name": "find", "parameters": parameters, "result": result}])
    with pytest.raises(rrpc.FailedPrecondition, match="string is now tuple<int, int") as caught:
        connect_as("old", odd_server(hello(), long))
    assert len(str(caught.value)) < 2500


def test_a_description_is_walked_once(
    odd_server: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For its fingerprint, and once for each pair of peers that the comparison tells of."""
    walks: list[str] = []

    class Canonical(fingerprints._Canonical):
        def __init__(self, service: Service) -> None:
            walks.append(f"fingerprint of {service.name}")
            super().__init__(service)

    def compare_methods(*given: Any) -> None:
        walks.append("comparison")
        methods.compare_methods(*given)

    monkeypatch.setattr(fingerprints, "_Canonical", Canonical)
    monkeypatch.setattr(changes, "compare_methods", compare_methods)
    with connect_as("old", odd_server(hello(), _description())):
        assert walks == ["fingerprint of lab.Rows", "comparison", "comparison"]


def test_a_description_is_heeded(odd_server: Callable[..., str]) -> None:
    with connect_as("old", odd_server(hello(), _description())) as client:
        assert client.find("p") == "hi"
    parameters = [{"name": "prefix", "type": "bytes"}]
    changed = _description(methods=[{"name": "find", "parameters": parameters, "result": "string"}])
    with pytest.raises(rrpc.FailedPrecondition, match=r"lab\.Rows\.find\(prefix\): string is now bytes"):
        connect_as("old", odd_server(hello(), changed))
