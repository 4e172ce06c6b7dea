"""examples/wire, a client written from docs/protocol.md, with a real rrpc-serve."""

import array
import ast
import importlib.util
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from processes import ROOT, Served, ServeFactory, patience, run

WIRE = ROOT / "examples" / "wire"
CLIENT_STREAMS, SERVER_STREAMS = 2, 4

Begin = Callable[..., Served]


def load() -> Any:
    spec = importlib.util.spec_from_file_location("wire_example", WIRE / "wire.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.PATIENCE = patience(module.PATIENCE)
    return module


wire = load()


@pytest.fixture
def begin(serve: ServeFactory) -> Begin:
    def begin(*more: str, listen: str = "tcp://127.0.0.1:0") -> Served:
        return serve.start(["station:Station", "--listen", listen, *more], 1, folder=WIRE)

    return begin


def connected(server: Served) -> Any:
    host, _, port = server.address.partition("://")[2].rpartition(":")
    return wire.Wire(host, int(port))


@pytest.fixture
def client(begin: Begin) -> Iterator[Any]:
    client = connected(begin())
    yield client
    client.close()


def doubles(shape: tuple[int, ...]) -> Any:
    return wire.Array("<f8", shape, array.array("d", range(int(np.prod(shape)))))


def as_numpy(value: Any) -> Any:
    return np.frombuffer(value.data, value.dtype).reshape(value.shape)


def test_the_client_uses_nothing_of_rrpc_and_is_short() -> None:
    text = (WIRE / "wire.py").read_text()
    assert len(text.splitlines()) <= 400
    imported = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).partition(".")[0])
    assert imported - set(sys.stdlib_module_names) == {"msgpack"}


def test_the_demo_calls_each_kind_of_method(begin: Begin) -> None:
    host, _, port = begin().address.partition("://")[2].rpartition(":")
    lines = run("demo.py", host, port, cwd=WIRE).stdout.splitlines()
    assert lines[:-1] == [
        "{'count': 3, 'total': 59.0}",
        f"(1000, 1000) {999_999 * 1.8}",
        "[400000, 400000, 400000]",
        "1000.0",
        "watched 0",
    ]
    assert lines[-1].startswith("3 Station.summary(): argument 'readings'")


@pytest.mark.parametrize("listen", ["tcp://127.0.0.1:0", "rrpc://127.0.0.1:0"])
def test_values_come_back_as_they_went(begin: Begin, listen: str) -> None:
    client = connected(begin(listen=listen))
    value: list[Any] = [
        None,
        True,
        -7,
        1.5,
        "é",
        b"x",
        (1, (2, "y")),
        {3},
        frozenset({4}),
        {"a": {"b": [()]}},
    ]
    value += [bytearray(b"x"), b"x" * 20_000, bytearray(b"y" * 20_000), []]
    assert client.start("Station.echo", value).result() == value
    client.close()


@pytest.mark.parametrize("shape", [(0,), (5,), (2000,), (3, 500, 400)])
def test_arrays_of_any_size_go_both_ways(client: Any, shape: tuple[int, ...]) -> None:
    array = doubles(shape)
    scaled = as_numpy(client.start("Station.scaled", array, 2.0).result())
    assert scaled.shape == shape
    assert np.array_equal(scaled, as_numpy(array) * 2)


def test_arguments_and_results_longer_than_a_slot_are_fetched(client: Any) -> None:
    value = list(range(100_000))
    assert client.start("Station.echo", value).result() == value
    assert client.exposed == {}


@pytest.mark.parametrize(("days", "readings"), [(5000, 3), (40, 100_000)])
def test_a_stream_of_items_comes_beyond_its_window(client: Any, days: int, readings: int) -> None:
    count = 0
    for number, day in enumerate(client.start("Station.days", days, readings, streams=SERVER_STREAMS)):
        assert np.array_equal(as_numpy(day), np.full(readings, float(number)))
        count += 1
    assert count == days
    assert client.calls == {}


def test_a_stream_of_items_goes_beyond_its_window(client: Any) -> None:
    call = client.start("Station.record", streams=CLIENT_STREAMS)
    for _ in range(3000):
        call.send(doubles((3,)))
    for _ in range(40):
        call.send(doubles((100_000,)))
    call.send([1.0] * 10_000)  # too long for a slot
    call.finish()
    assert call.result() == 3000 * 3 + 40 * sum(range(100_000)) + 10_000
    assert client.exposed == {}


def test_errors_have_codes_and_leave_the_connection(client: Any) -> None:
    with pytest.raises(wire.CallError, match="no method 'nothing'") as unknown:
        client.start("Station.nothing").result()
    assert (unknown.value.code, unknown.value.not_executed) == (12, True)
    with pytest.raises(wire.CallError, match="argument 'readings'") as invalid:
        client.start("Station.summary", "warm").result()
    assert (invalid.value.code, invalid.value.not_executed) == (3, False)
    with pytest.raises(wire.CallError, match="frozen") as raised:
        client.start("Station.thaw").result()
    assert (raised.value.code, raised.value.details) == (9, {"error": "Frozen", "details": {"degrees": -3}})
    assert client.start("Station.echo", 1).result() == 1


def test_cancelled_and_late_calls_end_and_others_go_on(client: Any) -> None:
    watched = client.start("Station.watch", streams=SERVER_STREAMS)
    items = iter(watched)
    assert next(items) == 0
    watched.cancel()
    with pytest.raises(wire.CallError, match="cancelled"):
        next(items)
    late = client.start("Station.watch", streams=SERVER_STREAMS, timeout=0.05)
    with pytest.raises(wire.CallError, match="deadline") as passed:
        list(late)
    assert passed.value.code == 4
    client.wait(lambda: not client.calls)  # the server has acknowledged both
    assert client.start("Station.echo", 1).result() == 1


def test_a_draining_server_ends_the_calls_under_way_and_takes_no_more(begin: Begin) -> None:
    server = begin()
    client = connected(server)
    call = client.start("Station.totals", streams=CLIENT_STREAMS | SERVER_STREAMS)
    call.send([1.0])
    totals = iter(call)
    assert next(totals) == 1  # its handler has begun
    server.process.terminate()
    client.wait(lambda: client.draining is not None)
    with pytest.raises(wire.CallError, match="takes no new calls") as refused:
        client.start("Station.echo", 1)
    assert refused.value.not_executed
    call.send(doubles((100_000,)))
    call.finish()
    assert list(totals) == [1 + sum(range(100_000))]
    with pytest.raises(wire.CallError, match="stopped") as closed:
        client.wait(lambda: False)
    assert closed.value.code == 14
    assert server.wait() == 0


def test_the_client_answers_pings(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    client = connected(begin("--keepalive-interval", "0.05"))
    told: list[int] = []
    send = client.send_control

    def send_control(kind: int, body: bytes = b"") -> None:
        told.append(kind)
        send(kind, body)

    monkeypatch.setattr(client, "send_control", send_control)
    client.wait(lambda: told.count(wire.PONG) == 10)  # more than there are control credits
    assert client.start("Station.echo", 1).result() == 1
    client.close()
