"""examples/fleet with servers that are killed, started again and drained: no run is lost, and each is right."""

import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from ports import own_port
from processes import ROOT, Served, child_environment

import rrpc

FLEET = ROOT / "examples" / "fleet"
K = 5
RUNS = 100
RUNS_MAX = 5000

Rows = NDArray[np.float64]
Begin = Callable[..., list[Served]]


@pytest.fixture(scope="module")
def rows() -> Rows:
    from sklearn.datasets import load_digits

    return np.ascontiguousarray(load_digits().data[:300])


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Starts a server for each name, at an address that was one's before, or at a new one."""
    begun: list[Served] = []

    def begin(*names: str, address: str = "") -> list[Served]:
        environment, servers = child_environment(OMP_NUM_THREADS="1"), []
        for name in names:
            command = [sys.executable, "-m", "rrpc.cli.serve", "kmeans:KMeans", "--arg", f"name={name}"]
            command += ["--listen", address or f"rrpc://127.0.0.1:{own_port()}"]
            servers.append(Served.launch(command, FLEET, tmp_path / f"{name}.log", environment))
        begun.extend(servers)
        for server in servers:
            server.wait_until_listening(1)
        return servers

    yield begin
    for server in begun:
        if server.process.poll() is None:
            server.kill()


def addresses_of(servers: list[Served]) -> str:
    return "rrpc://" + ",".join(server.address.removeprefix("rrpc://") for server in servers)


def plain_k_means(rows: Rows, seed: int) -> tuple[Rows, float, int]:
    """As one writes it down: the centroids, their inertia, and in which round no row moved any more."""
    centroids = rows[np.random.default_rng(seed).choice(len(rows), K, replace=False)]
    before, rounds = np.full(len(rows), -1), 0
    while True:
        rounds += 1
        distances = ((rows[:, None] - centroids) ** 2).sum(axis=2)
        nearest = distances.argmin(axis=1)
        if (nearest == before).all():
            return centroids, distances.min(axis=1).sum(), rounds
        before = nearest
        centroids = np.array([rows[nearest == cluster].mean(axis=0) for cluster in range(K)])


@pytest.mark.parametrize("names", ["a", "abc"])
def test_a_killed_server_takes_no_run_with_it(
    begin: Begin, rows: Rows, monkeypatch: pytest.MonkeyPatch, names: str
) -> None:
    """The only server, or one of three; in the middle of a run, and started again while the others go on."""
    monkeypatch.syspath_prepend(str(FLEET))
    import cluster  # type: ignore[import-not-found]

    servers, killed, ran, fits = begin(*names), threading.Event(), Counter[str](), []

    class Deadly(cluster.Desk):  # type: ignore[misc]
        def report(self, server: str, seed: int, rounds: int, inertia: float) -> None:
            super().report(server, seed, rounds, inertia)
            if server == "a" and ran["a"] >= 3 and not killed.is_set():
                servers[0].process.kill()
                killed.set()
            time.sleep(0.01)  # else there are hundreds of runs until it has connected again

    def begin_again() -> None:
        assert killed.wait(60)
        servers[0].wait()
        begin("again", address=servers[0].address)

    def seeds() -> Iterator[int]:
        """Until the new server has had some; a slow start of it isn't to mean thousands of runs."""
        for seed in range(RUNS_MAX):
            if seed == RUNS:
                restart.result()
            if ran["again"] >= 3:
                return
            yield seed

    desk: Any = Deadly(rows)
    with (
        ThreadPoolExecutor(1) as beside,
        rrpc.Server(desk) as server,
        cluster.connect(addresses_of(servers), server, "least_outstanding", 60.0) as kmeans,
    ):
        restart = beside.submit(begin_again)
        for fit in cluster.search(kmeans, rows, K, seeds(), at_once=6):
            ran[fit.server] += 1
            fits.append(fit)
        restart.result()
    assert set(ran) == {*names, "again"}
    assert sorted(fit.seed for fit in fits) == list(range(len(fits)))
    assert 1 <= desk.begun_again() <= 6  # those that the killed one had
    assert desk.rows_sent == len(names) + 1  # once to each process
    for fit in fits:
        centroids, inertia, rounds = plain_k_means(rows, fit.seed)
        np.testing.assert_allclose(fit.centroids, centroids)
        assert (fit.inertia, fit.rounds) == (pytest.approx(inertia), rounds)


def test_a_drained_servers_runs_end_and_others_go_elsewhere(
    begin: Begin,
    rows: Rows,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(str(FLEET))
    import cluster

    (a, b), once = begin("a", "b"), threading.Lock()

    class Draining(cluster.Desk):  # type: ignore[misc]
        def report(self, server: str, seed: int, rounds: int, inertia: float) -> None:
            super().report(server, seed, rounds, inertia)
            if server == "a" and once.acquire(blocking=False):  # a second signal would end it at once
                a.process.terminate()

    monkeypatch.setattr(cluster, "Desk", Draining)
    np.save(tmp_path / "rows.npy", rows)
    command = [
        "cluster",
        f"--server={addresses_of([a, b])}",
        "--policy=round_robin",
        f"--runs={RUNS}",
        f"-k{K}",
    ]
    command += [f"--rows={tmp_path}/rows.npy", f"--output={tmp_path}/best.npy"]
    monkeypatch.setattr(sys, "argv", command)
    assert cluster.main() == 0
    assert a.wait() == 0
    printed = capsys.readouterr().out
    found = re.search(
        r"^runs +100 in \S+ s: (\d+) by a, (\d+) by b; begun again: 0\ncalled back +\S+ reports, 2 times the rows",
        printed,
        re.MULTILINE,
    )
    assert found, printed
    by_a, by_b = map(int, found.groups())
    assert by_a + by_b == RUNS
    assert 0 < by_a < RUNS // 2 - 10  # its turns, were it still there
    for seed, inertia, rounds in re.findall(
        r"^seed +(\d+): inertia (\S+) after (\d+) rounds$", printed, re.MULTILINE
    ):
        centroids, expected, rounds_expected = plain_k_means(rows, int(seed))
        assert (inertia, int(rounds)) == (f"{expected:,.1f}", rounds_expected)
    np.testing.assert_allclose(np.load(tmp_path / "best.npy"), centroids)  # of the last that was better
    assert b.terminate() == 0
    assert cluster.main() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match("cluster: none of the 2 addresses can be had: .* is the server running there", line)
