"""rrpc-serve --metrics: the page, parsed by Prometheus's own parser, /healthz and /readyz; and where it runs."""

import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from processes import START_UP_SECONDS, Served, ServeFactory, eventually, run_python, run_serve
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

import rrpc
from rrpc._numa import cpu_list
from rrpc.cli.serving.metrics import CORE_METRICS
from rrpc.cli.serving.statistics import added

MODULE = """
import signal, threading, time
from collections.abc import Iterator
import numpy as np, rrpc
from numpy.typing import NDArray

time.sleep(%s)
GO = threading.Event()
signal.signal(signal.SIGUSR1, lambda number, frame: GO.set())

@rrpc.service
class Counted:
    @rrpc.method
    def half(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return values[::2].copy()

    @rrpc.method
    def wait(self, seconds: float) -> bool:
        if seconds:
            print("at work", flush=True)
        return GO.wait(seconds)

    @rrpc.method
    def fail(self, how: str) -> None:
        raise rrpc.NotFound(how) if how == "found" else ValueError(how)

    @rrpc.method
    def sums(self, numbers: Iterator[int]) -> Iterator[int]:
        for number in numbers:
            yield number
            yield -number
"""


def fetch(url: str, accept: str = "") -> tuple[int, str, str]:
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers={"Accept": accept}), timeout=10
        ) as got:
            return got.status, got.read().decode(), got.headers["Content-Type"]
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), error.headers["Content-Type"]


class Scraped:
    """Samples by name and labels."""

    def __init__(self, text: str, parser: Callable[[str], object] = parse) -> None:
        self.families = {family.name: family for family in parser(text)}  # type: ignore[attr-defined]
        self._samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        return float(self._samples[name, frozenset(labels.items())])

    def has(self, name: str, value: float, **labels: str) -> bool:
        return self._samples.get((name, frozenset(labels.items()))) == value

    def labels_of(self, name: str, label: str) -> set[str]:
        return {dict(labels)[label] for found, labels in self._samples if found == name}


@pytest.fixture
def served(serve: ServeFactory, transport: str) -> Served:
    return serve(MODULE % 0, "Counted", listen=transport, args=["--metrics", "127.0.0.1:0", "--workers", "2"])


def scrape(served: Served) -> Scraped:
    status, text, kind = fetch(f"{served.metrics_url()}/metrics")
    assert (status, kind.split(";")[0]) == (200, "text/plain")
    return Scraped(text)


def page_with(served: Served, name: str, value: float, **labels: str) -> Scraped:
    """A page where that is so; the reply reaches a caller before the call is counted."""
    eventually(lambda: scrape(served).has(name, value, **labels))
    return scrape(served)


def test_what_calls_leave_on_the_page(served: Served) -> None:
    with rrpc.connect(served.address, timeout=20.0) as client:
        for _ in range(3):
            client.call("Counted.half", np.zeros(100_000))
        for how in ("found", "found", "x"):
            with pytest.raises(rrpc.RpcError):
                client.call("Counted.fail", how)
        for method in ("Counted.none", "none", 'strange{label="x"}\n'):
            with pytest.raises(rrpc.Unimplemented):
                client.call(method)
        page = page_with(served, "rrpc_calls_total", 3, method="unknown")
        assert page("rrpc_calls_total", method="Counted.half") == 3
        assert page("rrpc_call_errors_total", method="Counted.fail", code="NOT_FOUND") == 2
        assert page("rrpc_call_errors_total", method="Counted.fail", code="UNKNOWN") == 1
        assert page("rrpc_call_errors_total", method="unknown", code="UNIMPLEMENTED") == 3
        assert page.labels_of("rrpc_calls_total", "method") == {"Counted.half", "Counted.fail", "unknown"}
        assert page.labels_of("rrpc_call_items_total", "method") == set()
        moved = {"method": "Counted.half"}
        assert page("rrpc_call_bytes_total", direction="request", way="read", **moved) == 2_400_000
        assert page("rrpc_call_bytes_total", direction="reply", way="lifted", **moved) == 1_200_000
        assert page("rrpc_bytes_read_total") >= 2_400_000
        assert page("rrpc_bytes_inline_received_total") > 0
        assert page("rrpc_server_connections") == 1
        assert page("rrpc_server_calls_running") == 0
        assert page("rrpc_pool_bytes_committed") > 0
        assert page("rrpc_pool_limit_bytes") > page("rrpc_pool_bytes_used")
        assert page("rrpc_credit_waits_total") == 0
        assert page("rrpc_pinned_bytes") >= 0
        assert page("process_resident_memory_bytes") > 1 << 20
        for name in ("rrpc_call_seconds", "rrpc_call_handler_seconds", "rrpc_call_queue_seconds"):
            assert page(f"{name}_count", **moved) == 3
            assert page(f"{name}_bucket", le="+Inf", **moved) == 3
            assert page.families[name].type == "histogram"
        assert page("rrpc_call_seconds_sum", **moved) >= page("rrpc_call_handler_seconds_sum", **moved) > 0
        assert page.labels_of("rrpc_build_info", "version") == {rrpc.__version__}


def test_items_of_streams_are_counted(served: Served) -> None:
    with rrpc.connect(served.address, timeout=20.0) as client:
        for _ in range(2):
            with rrpc.open_stream(client, "Counted.sums", sends=True) as stream:
                for number in range(5):
                    stream.send(number)
                stream.finish()
                assert len(list(stream)) == 10
    page = page_with(served, "rrpc_call_items_total", 20, method="Counted.sums", direction="sent")
    assert page("rrpc_call_items_total", method="Counted.sums", direction="received") == 10
    assert page("rrpc_calls_total", method="Counted.sums") == 2


def test_times_and_what_runs(serve: ServeFactory) -> None:
    served = serve(MODULE % 0, "Counted", args=["--metrics", "127.0.0.1:0", "--workers", "2"])
    with rrpc.connect(served.address, timeout=20.0) as client:
        held = [client.start("Counted.wait", 20.0) for _ in range(4)]  # two of them wait for a worker
        eventually(lambda: scrape(served)("rrpc_server_calls_running") == 4)
        eventually(lambda: served.log.count("at work") == 2)
        start = time.monotonic()
        with rrpc.connect(served.address, timeout=20.0):
            assert scrape(served)("rrpc_server_connections") == 2
        eventually(lambda: time.monotonic() > start + 0.15)
        served.signal(signal.SIGUSR1)
        assert [call.result() for call in held] == [True] * 4
        done = {"method": "Counted.wait"}
        page = page_with(served, "rrpc_calls_total", 4, **done)
    assert page("rrpc_call_seconds_bucket", le="0.1", **done) == 0
    assert page("rrpc_call_queue_seconds_bucket", le="0.1", **done) == 2
    assert page("rrpc_call_handler_seconds_bucket", le="0.1", **done) == 2
    assert page("rrpc_call_seconds_sum", **done) > 0.5


def test_counters_never_fall(serve: ServeFactory) -> None:
    """Those of a process that died stay in the sum; it is the sum of all processes that is shown."""
    served = serve(MODULE % 0, "Counted", args=["--metrics", "127.0.0.1:0", "--processes", "2"])
    done = {"method": "Counted.half"}
    for _ in range(4):
        with rrpc.connect(served.address, timeout=20.0) as client:
            client.call("Counted.half", np.zeros(4))
    page_with(served, "rrpc_calls_total", 4, **done)
    for child in Path(f"/proc/{served.pid}/task/{served.pid}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)
    eventually(lambda: served.log.count("it is started again") == 2)
    eventually(lambda: attempt(f"{served.metrics_url()}/readyz") == (200, "ready\n"), START_UP_SECONDS)
    page = scrape(served)
    assert page("rrpc_calls_total", **done) == 4
    assert page("rrpc_server_connections") == 0
    with rrpc.connect(served.address, timeout=20.0) as client:
        client.call("Counted.half", np.zeros(4))
    page_with(served, "rrpc_calls_total", 5, **done)


def test_ready_and_live(serve: ServeFactory, tmp_path: Path) -> None:
    """Live while it loads and while it drains; ready only between. The drain's delay gives time to notice."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    args = ["--metrics", f"127.0.0.1:{port}", "--drain-delay", "20"]
    (tmp_path / "slow.py").write_text(MODULE % 1.5)
    served = serve.start(["slow:Counted", "--listen", "tcp://127.0.0.1:0", *args], 0)
    assert eventually(lambda: attempt(f"{url}/readyz")) == (503, "starting\n")
    assert attempt(f"{url}/healthz") == (200, "ok\n")
    served.wait_until_listening(1)
    assert attempt(f"{url}/readyz") == (200, "ready\n")
    with rrpc.connect(served.address, timeout=20.0) as client:
        served.signal(signal.SIGTERM)
        eventually(lambda: attempt(f"{url}/readyz") == (503, "draining\n"))
        assert attempt(f"{url}/healthz") == (200, "ok\n")
        assert client.call("Counted.wait", 0.0) is False  # still taken
        with rrpc.connect(served.address, timeout=20.0) as late:
            assert late.call("Counted.wait", 0.0) is False
    served.signal(signal.SIGTERM)
    assert served.wait() == 128 + signal.SIGTERM


def attempt(url: str) -> tuple[int, str] | None:
    try:
        return fetch(url)[:2]
    except urllib.error.URLError:
        return None


def test_openmetrics_where_the_scraper_asks_for_it(serve: ServeFactory) -> None:
    served = serve(MODULE % 0, "Counted", args=["--metrics", "127.0.0.1:0"])
    status, text, kind = fetch(
        f"{served.metrics_url()}/metrics", "application/openmetrics-text; version=1.0.0"
    )
    assert (status, kind.split(";")[0]) == (200, "application/openmetrics-text")
    assert Scraped(text, parse_openmetrics).families["rrpc_messages_sent"].type == "counter"
    status, text, _ = fetch(f"{served.metrics_url()}/nothing")
    assert (status, text) == (404, "there is /metrics, /healthz and /readyz\n")


def test_a_slow_scraper_holds_nobody_up(serve: ServeFactory) -> None:
    served = serve(MODULE % 0, "Counted", args=["--metrics", "127.0.0.1:0"])
    host, port = served.metrics_url().removeprefix("http://").split(":")
    held = [socket.create_connection((host, int(port))) for _ in range(10)]
    held[0].sendall(b"GET /metrics HTTP/1.1\r\nX: ")
    assert scrape(served)("rrpc_server_connections") == 0
    for connection in held:
        connection.close()


def test_every_counter_has_its_help() -> None:
    assert set(rrpc.stats()) == set(CORE_METRICS)


def test_numbers_of_several_processes_add_up() -> None:
    one = {"methods": {"A.x": {"codes": {"0": 2}, "times": [1, 0]}}, "pinned": 5}
    two = {
        "methods": {"A.x": {"codes": {"0": 1, "5": 1}, "times": [1, 1]}, "A.y": {"codes": {}}},
        "pinned": 6,
    }
    assert added([one, two]) == {
        "methods": {"A.x": {"codes": {"0": 3, "5": 1}, "times": [2, 1]}, "A.y": {"codes": {}}},
        "pinned": 11,
    }


BAD = {
    "no port": ("localhost", "isn't of the form host:port"),
    "no number": ("localhost:http", "isn't of the form host:port"),
    "six": ("::1:80", "isn't of the form host:port"),
    "no host": ("no.such.host.invalid:1", "--metrics no.such.host.invalid:1: "),
}


@pytest.mark.parametrize("what", BAD)
def test_an_address_that_can_t_be(tmp_path: Path, what: str) -> None:
    address, said = BAD[what]
    (tmp_path / "mine.py").write_text(MODULE % 0)
    done = run_serve("mine:Counted", "--metrics", address, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_prometheus_client_the_cure_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODULE % 0)
    code = "import sys; sys.modules['prometheus_client'] = None\n"
    code += "from rrpc.cli.serve import main; sys.exit(main(sys.argv[1:]))"
    done = run_python(code, "mine:Counted", "--metrics", "127.0.0.1:0", cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert done.stderr == "rrpc-serve: --metrics needs prometheus-client: pip install 'rrpc-rdma[metrics]'\n"


def test_placement(serve: ServeFactory) -> None:
    """All threads, those of the core and of numpy too, stay on the processor asked for."""
    cpu = max(os.sched_getaffinity(0))
    node = next(iter(Path(f"/sys/devices/system/cpu/cpu{cpu}").glob("node[0-9]*"))).name.removeprefix("node")
    served = serve(MODULE % 0, "Counted", args=["--cpus", str(cpu), "--numa-node", node])
    with rrpc.connect(served.address, timeout=20.0) as client:
        assert client.call("Counted.wait", 0.0) is False
    threads = [int(name) for name in os.listdir(f"/proc/{served.pid}/task")]
    assert len(threads) > 4
    assert {frozenset(os.sched_getaffinity(thread)) for thread in threads} == {frozenset({cpu})}
    policies = Path(f"/proc/{served.pid}/numa_maps")
    if policies.exists():
        assert f"prefer:{node}" in policies.read_text() or f"prefer (many):{node}" in policies.read_text()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--cpus", "5000"], "--cpus 5000: processor 5000 isn't there for this process, which may use "),
        (["--cpus", "3-1"], "isn't a list of processors such as 0-3,8"),
        (["--cpus", "a"], "isn't a list of processors such as 0-3,8"),
        (["--numa-node", "900"], "--numa-node 900: there is no such node; there is 0"),
        (["--numa-node", "-1"], "isn't a node's number or auto"),
        (["--numa-node", "next"], "isn't a node's number or auto"),
    ],
)
def test_placement_that_can_t_be(tmp_path: Path, args: list[str], said: str) -> None:
    (tmp_path / "mine.py").write_text(MODULE % 0)
    done = run_serve("mine:Counted", *args, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_lists_of_processors() -> None:
    assert cpu_list("0-3,8") == {0, 1, 2, 3, 8}
    assert cpu_list("5") == {5}
    for text in ("", "1-", "-1", "1,,2", "x", "2-1", "0-99999999"):
        with pytest.raises(ValueError):
            cpu_list(text)
