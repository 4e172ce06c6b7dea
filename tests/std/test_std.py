"""The built-in services, as callers see them in rrpc-serve and as an application sets them."""

import asyncio
import datetime
import signal
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from lab import LAB, LabServer
from processes import ROOT, ServeFactory, eventually, patience

import rrpc
from rrpc import std
from rrpc._server.health import Health
from rrpc.cli import gen
from rrpc.idl import load, print_module
from rrpc.schema import fingerprint, from_data, service_of
from rrpc.std import HealthClient, HealthStatus, ProcessStats, ReflectionClient, StatsClient
from rrpc.std.builtin_services import HealthService

BUILTIN = ["rrpc.Health", "rrpc.Reflection", "rrpc.Stats"]
SERVING, NOT_SERVING = HealthStatus.SERVING, HealthStatus.NOT_SERVING
FILES = [f"idl/std/{name}.rrpc" for name in ("health", "reflection", "stats")]


@rrpc.service
class First:
    @rrpc.method
    def one(self) -> int:
        return 1


@rrpc.service(name="lab.Second")
class Second:
    @rrpc.method
    def two(self) -> int:
        return 2


@rrpc.service(name="rrpc.Health")
class OwnHealth:
    @rrpc.method
    def check(self, service: str = "") -> str:
        return "own"


@rrpc.service
class Stuck:
    """Handlers that end when the test lets them."""

    def __init__(self) -> None:
        self.opened = threading.Event()

    @rrpc.method
    def hold(self) -> int:
        self.opened.wait(patience(60))
        return 1

    @rrpc.method
    async def hold_later(self) -> int:
        while not self.opened.is_set():
            await asyncio.sleep(0.01)
        return 1


@pytest.fixture
def server() -> Iterator[rrpc.Server]:
    with rrpc.serve(First(), Second(), listen="tcp://127.0.0.1:0") as server:
        yield server


@pytest.fixture
def client(server: rrpc.Server) -> Iterator[rrpc.Client]:
    with rrpc.connect(server.addresses[0], timeout=20.0) as client:
        yield client


def test_the_stubs_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert gen.main([*FILES, "-o", "rrpc/std/generated_stubs.py", "--check"]) == 0


@pytest.mark.parametrize("file", FILES)
def test_the_files_are_in_the_canonical_form(file: str) -> None:
    text = (ROOT / file).read_text()
    module = load(ROOT / file)
    assert print_module(module) == text
    for name in module.services:  # what is served is what the file says
        assert (
            fingerprint(module.services[name])
            == getattr(std, f"{name.partition('.')[2]}Base").rpc_fingerprints[name]
        )


def test_their_clients(lab_address: str, lab_server: LabServer) -> None:
    with HealthClient(lab_address, timeout=20.0) as health:
        assert health.check() is SERVING
        assert health.check("Lab") is SERVING
        with pytest.raises(
            rrpc.NotFound, match=r"^there is no service 'Nearest' here; there is Lab, Second$"
        ):
            health.check("Nearest")
        with health.watch("Lab") as states:
            assert next(states) is SERVING
        with pytest.raises(rrpc.NotFound):
            next(health.watch("Nearest"))
    with ReflectionClient(lab_address, timeout=20.0) as reflection:
        assert reflection.services() == ["Lab", "Second", *BUILTIN]
        (watch,) = [
            m for m in from_data(reflection.describe("rrpc.Health")["service"]).methods if m.result_stream
        ]
        assert watch.name == "watch"
    with StatsClient(lab_address, timeout=20.0) as client:
        stats = client.process()
        assert isinstance(stats, ProcessStats)
        assert (stats.pid, stats.workers, stats.version) == (lab_server.pid, 8, rrpc.__version__)
        assert stats.uptime > datetime.timedelta(0)
        assert stats.pool_limit_bytes > stats.pool_bytes_used >= 0


def test_every_served_process_has_them(lab: rrpc.Client, lab_server: LabServer) -> None:
    assert lab.call("rrpc.Health.check") == SERVING
    assert lab.call("rrpc.Health.check", "Lab") == SERVING
    assert lab.call("rrpc.Reflection.services") == ["Lab", "Second", *BUILTIN]
    stats = lab.call("rrpc.Stats.process")
    assert stats["pid"] == lab_server.pid
    assert stats["version"] == rrpc.__version__
    assert stats["workers"] == 8
    assert stats["calls_running"] >= 1
    assert stats["connections"] >= 1


def test_stats_count_what_moved(lab: rrpc.Client) -> None:
    before = lab.call("rrpc.Stats.process")
    assert lab.call("Lab.size", bytes(1 << 20)) == 1 << 20
    after = lab.call("rrpc.Stats.process")
    assert after["calls_served"] >= before["calls_served"] + 2
    assert after["bytes_remote"] >= before["bytes_remote"] + (1 << 20)
    assert after["bytes_inline"] > before["bytes_inline"]
    assert after["uptime"] > before["uptime"]
    assert after["bytes_copied"] >= before["bytes_copied"]
    assert after["counters"]["bytes_read"] >= 1 << 20
    assert after["counters"].keys() >= rrpc.stats().keys()


def test_reflection_describes_what_is_served(client: rrpc.Client) -> None:
    for name in client.call("rrpc.Reflection.services"):
        described = client.call("rrpc.Reflection.describe", name)
        assert described["version"] == 1
        assert from_data(described["service"]).name == name
    described = client.call("rrpc.Reflection.describe", "lab.Second")
    assert from_data(described["service"]) == service_of(Second)
    with pytest.raises(rrpc.NotFound) as error:
        client.call("rrpc.Reflection.describe", "Nearest")
    assert error.value.message == (
        "there is no service 'Nearest' here; there is First, lab.Second, rrpc.Health, rrpc.Reflection, rrpc.Stats"
    )


def test_health_as_the_application_sets_it(server: rrpc.Server, client: rrpc.Client) -> None:
    server.health.set("First", False)
    assert client.call("rrpc.Health.check", "First") == NOT_SERVING
    assert client.call("rrpc.Health.check", "lab.Second") == SERVING
    assert client.call("rrpc.Health.check") == NOT_SERVING
    assert client.call("First.one") == 1  # health refuses nothing
    server.health.set("First", True)
    assert client.call("rrpc.Health.check") == SERVING
    with pytest.raises(
        rrpc.NotFound, match=r"^there is no service 'Third' here; there is First, lab\.Second$"
    ):
        client.call("rrpc.Health.check", "Third")
    with pytest.raises(rrpc.NotFound, match="no service 'Third'"):
        server.health.set("Third", False)


def test_a_draining_server_does_not_serve() -> None:
    release = threading.Event()
    seen: list[bool] = []

    @rrpc.service
    class Slow:
        @rrpc.method
        def wait(self) -> bool:
            assert release.wait(20)
            seen.append(own.health.serving("Slow"))
            return seen[0]

    own = rrpc.serve(Slow(), listen="tcp://127.0.0.1:0")
    with rrpc.connect(own.addresses[0], timeout=20.0) as client:
        assert own.health.serving()
        call = client.start("Slow.wait")
        eventually(lambda: own.running() == ["Slow.wait"])
        drain = threading.Thread(target=own.drain, args=(20.0,))
        drain.start()
        eventually(lambda: not own.health.serving())

        def refused() -> str:
            try:
                assert client.call("rrpc.Health.check") == NOT_SERVING  # taken just before
            except rrpc.Unavailable as error:
                return str(error)
            return ""

        assert "shutting down" in eventually(refused)
        release.set()
        assert call.result() is False
        drain.join()
    own.stop()
    assert not own.health.serving()


def test_a_server_told_to_end_says_so_while_it_still_takes_calls(serve: ServeFactory) -> None:
    served = serve(LAB, "Lab", module="lab_service", args=["--drain-delay", "60"])
    with HealthClient(served.address, timeout=20.0) as client:
        assert client.check() is SERVING
        served.signal(signal.SIGTERM)
        eventually(lambda: client.check() is NOT_SERVING)
        assert client.check("Lab") is NOT_SERVING
        assert client.call("Lab.add", 1) == 2
    served.kill()


def test_rrpc_serve_without_them(serve: ServeFactory) -> None:
    served = serve(LAB, "Lab", module="lab_service", args=["--no-builtin"])
    with rrpc.connect(served.address, timeout=20.0) as client:
        with pytest.raises(rrpc.Unimplemented, match=r"there is Lab$"):
            client.call("rrpc.Stats.process")
        assert client.call("Lab.add", 1) == 2


def test_without_them() -> None:
    with rrpc.serve(First(), listen="tcp://127.0.0.1:0", builtin=False) as server:
        with rrpc.connect(server.addresses[0], timeout=20.0) as client:
            with pytest.raises(
                rrpc.Unimplemented, match=r"no service 'rrpc\.Health' here .*; there is First$"
            ):
                client.call("rrpc.Health.check")
            assert client.call("First.one") == 1
        assert server.health.serving()


def test_errors_and_start_up_lines_name_the_users_services_alone(
    server: rrpc.Server, client: rrpc.Client
) -> None:
    assert server.services == "First, lab.Second"
    with pytest.raises(rrpc.Unimplemented, match=r"there is First, lab\.Second$"):
        client.call("Third.x")
    with pytest.raises(rrpc.Unimplemented, match=r"^rrpc\.Stats has no method 'x'; it has process$"):
        client.call("rrpc.Stats.x")


def test_a_users_service_of_the_name_goes_first() -> None:
    with (
        rrpc.serve(OwnHealth(), listen="tcp://127.0.0.1:0") as server,
        rrpc.connect(server.addresses[0], timeout=20.0) as client,
    ):
        assert client.call("rrpc.Health.check") == "own"
        described = client.call("rrpc.Reflection.describe", "rrpc.Health")
        assert from_data(described["service"]) == service_of(OwnHealth)
        assert client.call("rrpc.Reflection.services") == BUILTIN


def test_they_keep_no_server_alive() -> None:
    server = rrpc.Server(First())
    gone = weakref.ref(server)
    del server
    assert gone() is None


def test_a_watcher_is_told_of_a_drain_at_any_time() -> None:
    """Also of one that begins while it is told something else."""
    health = Health(["First"])
    states = HealthService(health).watch("First")
    assert next(states) is SERVING
    health.drain()
    assert [state for state in states if isinstance(state, HealthStatus)] == [NOT_SERVING]


class _Incomparable:
    def __call__(self) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        raise AssertionError("a watcher is looked for among all others")

    __hash__ = None  # type: ignore[assignment]


def test_a_watcher_leaves_without_a_search() -> None:
    health = Health(["First"])
    with health.watching(_Incomparable()), health.watching(_Incomparable()):
        health.set("First", False)
    assert not health._watchers


def test_watchers_hold_no_workers(address: str) -> None:
    with (
        rrpc.serve(First(), listen=address, workers=1) as server,
        HealthClient(server.addresses[0], timeout=20.0) as health,
    ):
        watchers = [health.watch("First") for _ in range(5)]
        assert [next(states) for states in watchers] == [SERVING] * 5
        assert health.check("First") is SERVING
        server.health.set("First", False)
        assert [next(states) for states in watchers] == [NOT_SERVING] * 5
        watchers.pop().close()
        server.health.set("First", False)  # which changes nothing
        server.health.set("First", True)
        assert [next(states) for states in watchers] == [SERVING] * 4
        drained = threading.Thread(target=server.drain)
        drained.start()
        assert [list(states) for states in watchers] == [[NOT_SERVING]] * 4
        drained.join(patience(10))
        assert not drained.is_alive()
        eventually(lambda: not server.health._watchers)


@pytest.mark.parametrize("method", ["hold", "hold_later"])
@pytest.mark.parametrize("observed", [False, True])
def test_a_server_that_refuses_all_calls_answers_them(address: str, method: str, observed: bool) -> None:
    stuck, seen = Stuck(), list[Any]()
    limits: dict[str, Any] = {"workers": 1, "max_concurrency": 1, "max_queue": 1}
    server = rrpc.serve(stuck, listen=address, observer=seen.append if observed else None, **limits)
    with server, rrpc.Channel(server.addresses[0]) as channel:
        client, health = (
            rrpc.Client(channel, timeout=patience(20)),
            HealthClient(channel, timeout=patience(20)),
        )
        held = [client.start(f"Stuck.{method}", timeout=patience(60)) for _ in range(2)]

        def running() -> int:  # the call that asks, too
            return int(client.call("rrpc.Stats.process")["calls_running"])

        # A call that waits for the connection may be overtaken by one that finds it made.
        eventually(lambda: running() == 3)
        with pytest.raises(rrpc.ResourceExhausted, match="max_queue"):
            client.call(f"Stuck.{method}")
        assert [health.check("Stuck") for _ in range(3)] == [SERVING] * 3
        assert next(health.watch()) is SERVING
        assert client.call("rrpc.Reflection.services") == ["Stuck", *BUILTIN]
        eventually(lambda: running() == 3)  # nobody watches
        assert [future.done() for future in held] == [False, False]
        stuck.opened.set()
        assert [future.result() for future in held] == [1, 1]
    if observed:
        assert {"rrpc.Health.check", "rrpc.Health.watch"} <= {call.method for call in seen}


class Slow(rrpc.ServerInterceptor):
    """In the way of each call of a built-in service."""

    def __init__(self) -> None:
        self.stuck = Stuck()

    def unary(self, call: Any) -> Any:
        if call.method.startswith("rrpc."):
            self.stuck.hold()
        return (yield call)


def test_their_queue_has_a_bound_of_its_own(address: str) -> None:
    slow = Slow()
    with (
        rrpc.serve(First(), listen=address, interceptors=[slow]) as server,
        rrpc.connect(server.addresses[0]) as greedy,
        rrpc.connect(server.addresses[0]) as other,
    ):
        calls = [greedy.start("rrpc.Health.check", timeout=patience(60)) for _ in range(258)]
        eventually(lambda: calls[-1].done())
        with pytest.raises(rrpc.ResourceExhausted, match="256 calls of the built-in services wait"):
            calls[-1].result()
        theirs = other.start("rrpc.Health.check", timeout=patience(60))
        eventually(lambda: calls[-2].done())  # who has most makes place
        assert other.call("First.one", timeout=patience(20)) == 1
        slow.stuck.opened.set()
        assert theirs.result() == SERVING.value
        assert [call.result() for call in calls[:-2]] == [SERVING.value] * 256
