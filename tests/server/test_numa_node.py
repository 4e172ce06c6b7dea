"""``numa_node``: where pollers run and where the pool's pages are. The nodes are those of this machine, or of a folder
that is laid out as Linux's sysfs."""

import multiprocessing
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from processes import ServeFactory, run_python

import rrpc
from rrpc import _numa
from rrpc._options import merged

ADDER = """
import rrpc

@rrpc.service
class Adder:
    @rrpc.method
    def add(self, one: int) -> int:
        return one + 1
"""
USABLE = sorted(os.sched_getaffinity(0))
REAL_NODE = int(
    next(Path(f"/sys/devices/system/cpu/cpu{USABLE[0]}").glob("node[0-9]*"), Path("node0")).name[4:]
)
two_processors = pytest.mark.skipif(len(USABLE) < 2, reason="needs two processors")


@rrpc.service
class Doubler:
    @rrpc.method
    def double(self, array: np.ndarray) -> np.ndarray:
        return array * 2


@pytest.fixture
def sys_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with two nodes: the first has this process's first processor alone, the second all the others."""
    nodes = tmp_path / "devices/system/node"
    for number, cpus in enumerate([str(USABLE[0]), _numa.shown(USABLE[1:])]):
        (nodes / f"node{number}").mkdir(parents=True)
        (nodes / f"node{number}/cpulist").write_text(cpus + "\n")
    (nodes / "node7").mkdir()
    (nodes / "node7/cpulist").write_text("\n")
    monkeypatch.setattr(_numa, "SYS", tmp_path)
    return tmp_path


def add_adapter(sys_folder: Path, name: str, node: int | None) -> None:
    device = sys_folder / "class/infiniband" / name
    device.mkdir(parents=True)
    if node is not None:
        (device / "device").mkdir()
        (device / "device/numa_node").write_text(f"{node}\n")


@pytest.mark.parametrize(
    ("adapters", "node"),
    [
        ({}, None),
        ({"mlx5_0": 1}, 1),
        ({"mlx5_0": 0, "mlx5_1": 0}, 0),
        ({"mlx5_0": 0, "mlx5_1": 1}, None),
        ({"mlx5_0": -1}, None),
        ({"rxe0": None}, None),
        ({"mlx5_0": 1, "rxe0": None}, None),
    ],
)
def test_auto_is_the_node_of_the_adapters(
    sys_folder: Path, adapters: dict[str, int | None], node: int | None
) -> None:
    for name, its_node in adapters.items():
        add_adapter(sys_folder, name, its_node)
    assert _numa.adapters_node() == node
    chosen = merged({"numa_node": "auto"})["numa_node"]
    assert chosen == (None if node is None else (node, USABLE[:1] if node == 0 else USABLE[1:]))


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (3, "numa_node 3: there is no such node; there is 0-1,7"),
        (7, "numa_node 7: this process may use none of its processors (it has none)"),
        (-1, "numa_node -1: there is no such node; there is 0-1,7"),
        ("next", "numa_node must be a node's number, 'auto' or None, not 'next'"),
        (True, "numa_node must be a node's number, 'auto' or None, not True"),
    ],
)
@pytest.mark.usefixtures("sys_folder")
def test_nodes_that_can_t_be(node: object, said: str) -> None:
    with pytest.raises(rrpc.InvalidArgument) as caught:
        rrpc.Server(Doubler(), numa_node=node)
    assert str(caught.value) == said


def test_a_kernel_without_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_numa, "SYS", tmp_path)
    with pytest.raises(rrpc.InvalidArgument, match="numa_node 0: this kernel knows no NUMA nodes"):
        rrpc.Server(Doubler(), numa_node=0)


def in_a_process(run: Callable[[], object]) -> None:
    """Runs it in a fork of this process: the pool prefers a node for good."""
    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    child.join(60)
    assert child.exitcode == 0


def affinities() -> dict[int, set[int]]:
    """The processors of each thread of this process, as /proc has them."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        allowed = re.search(r"Cpus_allowed_list:\s*(\S+)", (task / "status").read_text())
        assert allowed is not None
        found[int(task.name)] = set(_numa.cpu_list(allowed[1]))
    return found


ARRAY = np.arange(200_000.0)


def serves(**options: object) -> tuple[int, int]:
    """Returns how many threads a server and its client have, and how many of those run on the first processor alone."""
    before = set(affinities())
    with (
        rrpc.serve(Doubler(), listen="tcp://127.0.0.1:0", workers=2, **options) as server,
        rrpc.connect(server.addresses[0]) as client,
    ):
        assert np.array_equal(client.call("Doubler.double", ARRAY), ARRAY * 2)
        made = [cpus for thread, cpus in affinities().items() if thread not in before]
    return len(made), made.count({USABLE[0]})


@two_processors
@pytest.mark.usefixtures("sys_folder")
def test_pollers_run_on_the_node() -> None:
    def check() -> None:
        made, bound = serves(pollers=2, numa_node=0)
        assert bound == 3, "the listeners' thread and two pollers"
        assert made > bound, "workers and the clients' thread run where they like"

    in_a_process(check)


@two_processors
@pytest.mark.usefixtures("sys_folder")
def test_workers_that_poll_run_on_the_node() -> None:
    def check() -> None:
        made, bound = serves(numa_node=0)
        assert bound == 3 + 1, "two workers, that of the built-in services, the engine's thread"
        assert made > bound, "the clients' thread runs where it likes"

    in_a_process(check)


@two_processors
@pytest.mark.usefixtures("sys_folder")
def test_without_the_option_nothing_is_bound() -> None:
    def check() -> None:
        assert serves(pollers=2)[1] == 0
        assert not any("prefer" in line for line in Path("/proc/self/numa_maps").read_text().splitlines())

    in_a_process(check)


def policy_of(array: np.ndarray) -> str:
    """The line of /proc/self/numa_maps for an array's memory."""
    address = array.__array_interface__["data"][0]
    lines = Path("/proc/self/numa_maps").read_text().splitlines()  # by address
    return [line for line in lines if int(line.split()[0], 16) <= address][-1]


def test_pool_memory_is_of_the_node() -> None:
    def check() -> None:
        before = rrpc.empty(1 << 20)
        with (
            rrpc.serve(Doubler(), listen="tcp://127.0.0.1:0") as server,
            rrpc.connect(server.addresses[0], numa_node=REAL_NODE) as client,
        ):
            landed = client.call("Doubler.double", ARRAY)
            after = rrpc.zeros(1 << 26)
            assert client.info()["numa_node"] == str(REAL_NODE)
        for array in (before, landed, after):
            assert re.search(rf"prefer(?: \(many\))?:{REAL_NODE}\b", policy_of(array)), policy_of(array)
        assert f" N{REAL_NODE}=" in policy_of(after)

    in_a_process(check)


@pytest.mark.usefixtures("sys_folder")
def test_a_process_has_one_pool_and_so_one_node() -> None:
    def check() -> None:
        rrpc.serve(Doubler(), listen="tcp://127.0.0.1:0", numa_node=0).stop()
        with pytest.raises(
            rrpc.FailedPrecondition, match="numa_node 1: the memory pool of this process is on node 0"
        ):
            rrpc.serve(Doubler(), listen="tcp://127.0.0.1:0", numa_node=1)

    in_a_process(check)


def test_rrpc_serve_takes_auto(serve: ServeFactory) -> None:
    served = serve(ADDER, "Adder", args=["--numa-node", "auto"])
    node = _numa.adapters_node()
    policies = Path(f"/proc/{served.pid}/numa_maps").read_text()
    assert ("prefer" in policies) == (node is not None)
    assert os.sched_getaffinity(served.pid) == (set(USABLE) if node is None else _numa.cpus_of_node(node))


def test_rrpc_serve_binds_to_the_node_that_auto_finds(sys_folder: Path) -> None:
    add_adapter(sys_folder, "mlx5_0", 0)
    code = (
        "import os, sys; from pathlib import Path; from rrpc import _numa; _numa.SYS = Path(sys.argv[1])\n"
        "from rrpc.cli.serving.placement import place\n"
        "place(None, 'auto'); print(sorted(os.sched_getaffinity(0)))"
    )
    assert run_python(code, str(sys_folder)).stdout.strip() == str(USABLE[:1])
