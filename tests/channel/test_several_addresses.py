"""Channels with several addresses: which of them calls take, where names lead, and what becomes of calls meanwhile."""

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from counted_service import CountedClient
from fleet import Fleet, fleet, nursery, scheme, wait_until_gone
from load import Answers
from processes import eventually, patience

import rrpc
from rrpc._channel.name_resolver import Names

__all__ = ["fleet", "nursery", "scheme"]

QUICK = rrpc.Backoff(initial=0.02, maximum=0.1)


def states(client: rrpc.Client) -> list[str]:
    return [entry["state"] for entry in client.info()["channel"]["addresses"]]


def has_no_timer(channel: rrpc.Channel) -> bool:
    with channel._lock:
        channel._set_timer(time.monotonic())
        return channel._retry_timer is None or channel._retry_timer.done


def states_of(channel: rrpc.Channel) -> list[str]:
    return [subchannel.state for subchannel in channel._subchannels]


def works(client: rrpc.Client) -> bool:
    """Whether a call succeeds now; one that doesn't was refused before it was sent."""
    try:
        return bool(client.call("Counted.often", "probe", timeout=patience(10)))
    except rrpc.Unavailable:
        return False


# Names


def test_addresses_that_a_name_had_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names("tcps://db.example.org:1")
    numbers = itertools.count(1)
    monkeypatch.setattr(
        "socket.getaddrinfo", lambda *_, **__: [(0, 0, 0, "", (f"10.0.0.{next(numbers)}", 0))]
    )
    for number in range(1, 50):
        assert names.resolve() == [f"tcps://10.0.0.{number}:1"]
    # The last two: a connection that began before the last answer is checked by the name, too.
    for number, known in ((49, True), (48, True), (47, False)):
        options = names.options_for(f"tcps://10.0.0.{number}:1", {})
        assert options == ({"tls_peer_name": "db.example.org"} if known else {})


# Several addresses


def test_no_more_than_64_addresses_are_connected_to_at_once() -> None:
    others = set(threading.enumerate())

    def threads() -> int:
        return sum(thread.name == "rrpc-connecting" for thread in set(threading.enumerate()) - others)

    with contextlib.ExitStack() as stack:
        # They let in whoever comes, and say nothing.
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(70)]
        addresses = [f"tcp://127.0.0.1:{server.getsockname()[1]}" for server in silent]
        channel = stack.enter_context(
            rrpc.Channel(addresses, policy="round_robin", connect_timeout=patience(20))
        )
        channel.pick_soon()
        eventually(lambda: threads() == 64)
        assert states_of(channel) == ["connecting"] * 64 + ["idle"] * 6
        for server in silent[:6]:
            server.accept()[0].close()
        eventually(lambda: "idle" not in states_of(channel))
        eventually(lambda: threads() == 64)  # a thread starts the next one before it ends
        # Whoever is due again has to wait, too, for the end of another attempt and not for a timer.
        eventually(lambda: all(s.retry_at < time.monotonic() for s in channel._subchannels))
        eventually(lambda: has_no_timer(channel))
        assert states_of(channel).count("connecting") == 64
        for server in silent:
            server.close()
    eventually(lambda: threads() == 0)


@pytest.fixture
def load() -> Iterator[Callable[..., "Load"]]:
    loads: list[Load] = []

    def make(client: CountedClient, threads: int = 3) -> Load:
        loads.append(Load(client, threads))
        return loads[-1]

    yield make
    for one in loads:
        one.stop()


class Load(Answers):
    """Of so many threads, each of which has a call under way."""

    def __init__(self, client: CountedClient, threads: int) -> None:
        super().__init__()
        self._client = client
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        count = 0
        while not self._ending.is_set():
            key = f"key-{number}-{count}"
            count += 1
            try:
                if count % 2:
                    self.answers[key] = self._client.once(key, timeout=patience(20))
                else:
                    self.answers[key] = self._client.once.start(key, timeout=patience(20)).result()
            except Exception as error:
                self.errors[key] = error

    def goes_on(self) -> None:
        """Wait for more answers."""
        there = len(self.answers)
        eventually(lambda: len(self.answers) > there + 20, 20.0, what="more answers")

    def reaches(self, name: str) -> None:
        """Wait until the server answers, from now on."""
        before = self.of(name)
        eventually(lambda: self.of(name) > before + 2, 20.0, what=f"answers of {name}")

    def stop(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(patience(60))


def test_round_robin_while_a_server_is_killed_and_comes_back(
    fleet: Fleet, scheme: str, load: Callable[..., Load]
) -> None:
    servers = fleet.members(3, scheme)
    with CountedClient([s.address for s in servers], policy="round_robin", backoff=QUICK) as client:
        eventually(lambda: states(client) == ["ready"] * 3)
        running = load(client)
        for server in servers:
            running.reaches(server.name)
        for _ in range(3):
            servers[1].kill()
            running.goes_on()
            servers[1].start()
            running.reaches(servers[1].name)
        running.stop()
    running.check(fleet.runs())
    assert all(isinstance(error, rrpc.Unavailable) for error in running.errors.values())
    assert not any(error.not_executed for error in running.errors.values())  # type: ignore[attr-defined]
    # Each kill can have ended no more calls than there are callers.
    assert len(running.errors) <= 9


def test_connections_come_back_without_calls(fleet: Fleet, scheme: str) -> None:
    servers = fleet.members(2, scheme)
    with CountedClient([s.address for s in servers], policy="round_robin", backoff=QUICK) as client:
        eventually(lambda: states(client) == ["ready"] * 2)
        servers[1].kill()
        eventually(lambda: states(client)[1] != "ready")
        servers[1].start()
        eventually(lambda: states(client) == ["ready"] * 2)


class Told(rrpc.Backoff):
    """So long as the test says."""

    seconds: ClassVar[float] = 60.0

    def delay(self, failures: int) -> float:
        return self.seconds


def test_an_address_is_tried_again_while_another_has_to_wait_long(
    fleet: Fleet, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, server = fleet.member("dead", scheme), fleet.members(1, scheme)[0]
    addresses = [dead.address, server.address]
    with CountedClient(addresses, policy="round_robin", backoff=Told(), wait_for_ready=True) as client:
        eventually(lambda: states(client) == ["transient_failure", "ready"])  # tried again in a minute
        monkeypatch.setattr(Told, "seconds", 0.02)
        server.kill()
        eventually(lambda: states(client)[1] == "transient_failure")
        waiting = client.once.start("x", timeout=patience(20))
        server.start()
        assert waiting.result(patience(30)) == "server0"


@pytest.mark.parametrize("policy", ["pick_first", "round_robin", "least_outstanding"])
def test_a_drain_under_load_loses_no_call(
    fleet: Fleet, scheme: str, load: Callable[..., Load], policy: str
) -> None:
    servers = fleet.members(2, scheme)
    with CountedClient([s.address for s in servers], policy=policy, backoff=QUICK) as client:
        running = load(client)
        for turn in range(2):
            running.goes_on()
            server = servers[turn % 2]
            server.drain()
            running.reaches(servers[1 - turn % 2].name)
            wait_until_gone(server.pid)
            server.start()
            eventually(lambda: policy == "pick_first" or states(client) == ["ready"] * 2)
        running.stop()
    running.check(fleet.runs())
    assert running.errors == {}


def test_a_drain_of_the_only_server_is_waited_out(
    fleet: Fleet, scheme: str, load: Callable[..., Load]
) -> None:
    (server,) = fleet.members(1, scheme)
    with CountedClient(server.address, backoff=QUICK, wait_for_ready=True) as client:
        running = load(client)
        for _ in range(3):
            running.goes_on()
            server.drain()
            wait_until_gone(server.pid)
            server.start()
        running.goes_on()
        running.stop()
    running.check(fleet.runs())
    assert running.errors == {}


def test_the_first_address_that_can_be_had(fleet: Fleet, scheme: str) -> None:
    servers = fleet.members(2, scheme)
    nobody = fleet.member("nobody", "shm")
    with CountedClient([nobody.address, *(s.address for s in servers)], backoff=QUICK) as client:
        assert {client.often("x") for _ in range(5)} == {"server0"}
        assert states(client) == ["transient_failure", "ready", "idle"]
        servers[0].kill()
        wait_until_gone(servers[0].pid)
        eventually(lambda: works(client))
        assert {client.often("x") for _ in range(5)} == {"server1"}
    with pytest.raises(rrpc.Unavailable, match=r"none of the 2 addresses can be had: .*; "):
        CountedClient([nobody.address, servers[0].address])


def test_addresses_in_one_text(fleet: Fleet) -> None:
    servers = fleet.members(2, "tcp")
    rest = ",".join(server.address.removeprefix("tcp://") for server in servers)
    with CountedClient(f"tcp://{rest}", policy="round_robin") as client:
        eventually(lambda: states(client) == ["ready"] * 2)
        assert {client.often("x") for _ in range(4)} == {"server0", "server1"}


def test_least_outstanding(fleet: Fleet, scheme: str) -> None:
    servers = fleet.members(2, scheme)
    with CountedClient([s.address for s in servers], policy="least_outstanding") as client:
        eventually(lambda: states(client) == ["ready"] * 2)
        assert {client.often("x") for _ in range(10)} == {"server0", "server1"}  # in turn among equals
        servers[0].told("slow")
        held = [client.often.start("held")]
        while not fleet.ran("held", "server0"):
            if held[-1].done():
                held.append(client.often.start("held"))
        assert {client.often("y") for _ in range(10)} == {"server1"}
        servers[0].told("slow", False)
        assert held[-1].result(patience(20)) == "server0"


def test_a_failing_server_is_left_out_and_let_in_again(fleet: Fleet, scheme: str) -> None:
    servers = fleet.members(2, scheme)
    ejection = rrpc.Ejection(failures=3, initial=0.05, maximum=0.4)
    addresses = [s.address for s in servers]
    with CountedClient(addresses, policy="round_robin", ejection=ejection) as client:
        eventually(lambda: states(client) == ["ready"] * 2)
        servers[0].told("fail")
        failures = 0

        def ejected() -> bool:
            return bool(client.info()["channel"]["addresses"][0]["ejected"])

        while not ejected():
            failures += client.often.start("x").exception() is not None
        assert failures == 3
        eventually(lambda: not ejected())
        # Let in again it has one try, and the next time is longer.
        begun = time.monotonic()
        while not ejected():
            failures += client.often.start("x").exception() is not None
        assert failures == 4
        assert client._channel.connections()[0].record.ejected_until - time.monotonic() > 0.0
        assert client._channel.connections()[0].record.ejections == 2
        assert begun < time.monotonic()
        servers[0].told("fail", False)
        eventually(lambda: client.often("x") == "server0")
        assert client._channel.connections()[0].record.ejections == 0


def test_the_last_server_is_not_left_out(fleet: Fleet) -> None:
    servers = fleet.members(2, "shm")
    ejection = rrpc.Ejection(failures=1, initial=60.0)
    with CountedClient([s.address for s in servers], policy="round_robin", ejection=ejection) as client:
        eventually(lambda: states(client) == ["ready"] * 2)
        for server in servers:
            server.told("fail")
        for _ in range(6):
            with pytest.raises(rrpc.Unavailable, match="was told to fail"):
                client.often("x")
        for server in servers:
            server.told("fail", False)
        assert client.often("x") in ("server0", "server1")


# Names


def test_names_from_dns(fleet: Fleet) -> None:
    (server,) = fleet.members(1, "tcp")
    port = server.address.rpartition(":")[2]
    with CountedClient(f"tcp://localhost:{port}") as client:
        assert client.often("x") == "server0"
        assert client.address == f"tcp://localhost:{port}"
        resolved = [entry["address"] for entry in client.info()["channel"]["addresses"]]
        assert f"tcp://127.0.0.1:{port}" in resolved
    with pytest.raises(rrpc.Unavailable, match=r"'no-such-host\.invalid' can't be resolved"):
        CountedClient("tcp://no-such-host.invalid:1")


def test_a_resolver_that_changes_its_answer(fleet: Fleet, scheme: str, load: Callable[..., Load]) -> None:
    servers = fleet.members(3, scheme)
    answer = [servers[0].address]
    asked: list[str] = []

    def resolver(target: str) -> list[str]:
        asked.append(target)
        return answer

    rrpc.register_resolver("fleet", resolver)
    with CountedClient("fleet://all", policy="round_robin", backoff=QUICK) as client:
        assert {client.often("x") for _ in range(4)} == {"server0"}
        running = load(client)
        running.goes_on()
        answer = [servers[1].address, servers[2].address]
        servers[0].drain()  # it is asked again when a connection is lost
        running.reaches("server1")
        running.reaches("server2")
        running.stop()
        assert client.info()["channel"]["target"] == "fleet://all"
        assert [e["address"] for e in client.info()["channel"]["addresses"]] == answer
    assert set(asked) == {"fleet://all"}
    running.check(fleet.runs())


def test_a_file_of_addresses(fleet: Fleet, tmp_path: Path) -> None:
    servers = fleet.members(2, "shm")
    listed = tmp_path / "addresses"
    with pytest.raises(rrpc.Unavailable, match="can't be read: No such file"):
        CountedClient(f"file://{listed}")
    listed.write_text(f"# now\n{servers[0].address}\n\n")
    with CountedClient(f"file://{listed}") as client:
        assert client.often("x") == "server0"
        listed.write_text(f"{servers[1].address}\n")
        eventually(lambda: client.often("x") == "server1")  # without any failure: it is read now and then


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        ([], rrpc.Unavailable, "the resolver gives no addresses"),
        (["nonsense"], rrpc.InvalidArgument, "gave 'nonsense', which is no address"),
        (None, rrpc.Unavailable, "its resolver failed: TypeError"),
    ],
)
def test_what_resolvers_do_wrong(answer: Any, error: type[rrpc.RpcError], message: str) -> None:
    rrpc.register_resolver("wrong", lambda target: answer)
    with pytest.raises(error, match=message):
        rrpc.Client("wrong://x")
