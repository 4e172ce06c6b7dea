"""The built-in services, as callers see them in rrpc-serve and as an application sets them."""

import threading
import weakref
from collections.abc import Iterator

import pytest
from lab import LabServer
from processes import eventually

import rrpc
from rrpc.schema import from_data, service_of

BUILTIN = ["rrpc.Health", "rrpc.Reflection", "rrpc.Stats"]
SERVING, NOT_SERVING = 1, 2


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


@pytest.fixture
def server() -> Iterator[rrpc.Server]:
    with rrpc.serve(First(), Second(), listen="tcp://127.0.0.1:0") as server:
        yield server


@pytest.fixture
def client(server: rrpc.Server) -> Iterator[rrpc.Client]:
    with rrpc.connect(server.addresses[0], timeout=20.0) as client:
        yield client


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
        with pytest.raises(rrpc.Unavailable, match="shutting down"):
            client.call("rrpc.Health.check")
        release.set()
        assert call.result() is False
        drain.join()
    own.stop()
    assert not own.health.serving()


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
