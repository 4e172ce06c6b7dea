"""Clients and servers of equal and of other versions: what they ask when they connect, and whose methods are called."""

import contextlib
import struct
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from processes import eventually, patience
from raw_peer import CALL, REPLY, RawPeer, hello, message, request, setup
from two_versions import CLIENTS, PRINTS, client_of, connect_as, generate, named

import rrpc
from rrpc.observe import ServedCall

QUICK = rrpc.Backoff(initial=0.02, maximum=0.1)


@pytest.fixture
def observed() -> Iterator[tuple[rrpc.Server, list[ServedCall]]]:
    """A server of the old version in this process, and what it served."""
    calls: list[ServedCall] = []
    service = sys.modules["rows_old"].Rows()
    with rrpc.Server(service, listen="tcp://127.0.0.1:0", observer=calls.append) as server:
        yield server, calls


def _served(calls: list[ServedCall], count: int) -> list[str]:
    """Sorted: each is told of after its reply, by its own worker."""
    eventually(lambda: len(calls) >= count)
    assert all(call.known for call in calls)
    return sorted(call.method for call in calls)


def test_equal_versions_ask_nothing(observed: tuple[rrpc.Server, list[ServedCall]]) -> None:
    server, calls = observed
    with connect_as("old", server.addresses[0]) as client:
        assert client.find("p") == "p"
    assert _served(calls, 1) == ["lab.Rows.find"]


def test_other_versions_ask_once(observed: tuple[rrpc.Server, list[ServedCall]]) -> None:
    server, calls = observed
    with connect_as("new", server.addresses[0]) as client:
        assert [client.find("p"), client.find("q")] == ["p", "q"]
    assert _served(calls, 3) == ["lab.Rows.find", "lab.Rows.find", "rrpc.Reflection.describe"]


def test_untyped_clients_ask_nothing(observed: tuple[rrpc.Server, list[ServedCall]]) -> None:
    server, calls = observed
    with rrpc.connect(server.addresses[0]) as client:
        assert client.call("lab.Rows.find", "p") == "p"
    assert _served(calls, 1) == ["lab.Rows.find"]


def test_a_client_that_was_cut_down_calls_what_it_means(
    observed: tuple[rrpc.Server, list[ServedCall]],
) -> None:
    whole = CLIENTS["old"].RowsClient
    members = {"rpc_fingerprints": whole.rpc_fingerprints, "put": vars(whole)["put"]}
    cut = type("Cut", (rrpc.Client,), members)
    derived = type("Derived", (whole,), {"find": lambda self, prefix: f"own {prefix}"})
    row = CLIENTS["old"].Row(5)
    for kind in (cut, derived):
        with kind(observed[0].addresses[0], timeout=20.0) as client:
            assert client.put(row)[0] == row
    assert derived(observed[0].addresses[0]).find(1) == "own 1"


def test_after_a_restart_with_other_services() -> None:
    """With the same services in another order, then with others of the same methods."""
    port = 0
    for names in (["First", "Second"], ["Second", "First"], ["Third", "First", "Second"]):
        services = [named(name, f"I am {name}")() for name in names]
        with rrpc.Server(*services, listen=f"tcp://127.0.0.1:{port}") as server:
            port = int(server.addresses[0].rpartition(":")[2])
            for name in ("First", "Second"):
                with client_of(name)(server.addresses[0], timeout=20.0) as client:
                    assert client.who() == f"I am {name}"


def test_a_client_that_is_refused_keeps_no_other_from_connecting_again() -> None:
    port = 0
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            # Without reflection only its own version fits.
            rows, listen = sys.modules["rows_old"].Rows(), f"tcp://127.0.0.1:{port}"
            with rrpc.Server(rows, listen=listen, builtin=False) as server:
                if port == 0:
                    port = int(server.addresses[0].rpartition(":")[2])
                    channel = stack.enter_context(rrpc.Channel(server.addresses[0], backoff=QUICK))
                    fits = CLIENTS["old"].RowsClient(channel, timeout=patience(20), wait_for_ready=True)
                assert fits.find("p") == "p"
                with pytest.raises(rrpc.FailedPrecondition, match=r"it describes none"):
                    CLIENTS["new"].RowsClient(channel)


def test_names_of_no_method_are_refused(observed: tuple[rrpc.Server, list[ServedCall]]) -> None:
    server, _ = observed
    peer = RawPeer(server.addresses[0])
    known = b"lab.Rows.find"
    wrong = [b"\0", b"\0\0", known[:-1], b"\0" + known, known + b"\0", known + b"x", bytes(6), bytes(300)]
    for call_id, method in enumerate([known, *wrong, known], 1):
        peer.send(message(CALL, request(call_id, method, "p"), data=call_id - 1))
        kind, body = peer.read_message()
        status = struct.unpack_from("<QB", body)[1]
        assert (kind, status) == (REPLY, 0 if method == known else rrpc.StatusCode.UNIMPLEMENTED), method
    peer.close()


def test_what_runs_is_shown_by_name() -> None:
    started, release = threading.Event(), threading.Event()

    def wait(self: Any) -> None:
        started.set()
        assert release.wait(60)

    kind = rrpc.service(name="Slow")(type("Slow", (), {"wait": rrpc.method(wait)}))
    with rrpc.serve(kind(), listen="tcp://127.0.0.1:0") as server:
        client = generate(kind).SlowClient(server.addresses[0])
        future = client.wait.start()
        assert started.wait(60)
        assert server.running() == ["Slow.wait"]
        with pytest.raises(rrpc.DeadlineExceeded, match=r"^Slow\.wait\(\) was not done within its timeout"):
            client.wait(timeout=0.05)
        release.set()
        future.result(20)


def test_clients_that_say_more_in_hello(observed: tuple[rrpc.Server, list[ServedCall]]) -> None:
    for more in (b"", bytes.fromhex(PRINTS["old"]), bytes(8000)):
        peer = RawPeer(observed[0].addresses[0], greet=False)
        peer.send(setup() + hello(fingerprints=more) + message(CALL, request(1, "lab.Rows.find", "p")))
        while (found := peer.read_message())[0] != REPLY:
            pass
        assert found[1][8] == 0
        peer.close()
