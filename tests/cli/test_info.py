"""rrpc-info, on a machine with adapters or without."""

import json
import socket
from typing import Any

import pytest
from lab import LabServer

import rrpc
from rrpc.cli import choice, info, machine

DOWN = "port 1 of siw0 is down: bring its network interface up (ip link set ... up)"
ADAPTERS = [
    {
        "name": "mlx5_0",
        "port": "1",
        "state": "active",
        "transport": "RoCE",
        "active_mtu": "4096",
        "gids": "3 ::ffff:10.1.0.1 RoCE v2",
        "exposure": "memory window",
        "firmware": "20.1",
    },
    {"name": "siw0", "port": "1", "state": "down", "why_not": DOWN},
]


@pytest.fixture
def two_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rrpc, "adapters", lambda: ADAPTERS)


def test_what_is_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert info.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("rrpc ")
    sections = [line for line in lines if not line.startswith(" ")][1:]
    assert sections == ["transports", "adapters", "limits", "problems"]
    said = dict(line.split(maxsplit=1) for line in lines if line.startswith("  ") and line != "  none")
    assert said["shm"] == said["tcp"] == "usable"
    why_not = rrpc.transports()["verbs"].partition("can't be had: ")[2]
    assert why_not.startswith(said["verbs"]) if why_not else said["verbs"] == "usable"
    assert {"memlock", "ptrace_scope", "/dev/shm", "memory", "huge", "open"} <= set(said)
    if not rrpc.adapters():
        assert "  none" in lines


def test_json(capsys: pytest.CaptureFixture[str], two_adapters: None) -> None:
    assert info.main(["--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {"version", "kernel", "transports", "adapters", "limits", "problems"}
    assert report["transports"]["shm"] == {"usable": True, "why_not": ""}
    assert set(report["transports"]) == set(rrpc.transports())
    assert report["adapters"] == ADAPTERS
    assert {"memlock_soft_bytes", "memlock_hard_bytes", "ptrace_scope", "shm_bytes"} <= set(report["limits"])


def test_adapters(capsys: pytest.CaptureFixture[str], two_adapters: None) -> None:
    assert info.main([]) == 0
    out = capsys.readouterr().out
    block = out[out.index("adapters\n") : out.index("limits\n")].splitlines()
    assert block == [
        "adapters",
        "  mlx5_0 port 1: usable",
        "    state       active",
        "    transport   RoCE",
        "    active mtu  4096",
        "    gids        3 ::ffff:10.1.0.1 RoCE v2",
        "    exposure    memory window",
        "    firmware    20.1",
        "  siw0 port 1: no: port 1 of siw0 is down",
        "    state       down",
    ]


LIMITS = set(machine.limits())


def limits(**changed: Any) -> dict[str, Any]:
    """Those of a machine without a problem, but for these."""
    fine = {
        "memlock_soft_bytes": None,
        "memlock_hard_bytes": None,
        "may_lock_all": False,
        "ptrace_scope": 0,
        "may_trace_all": False,
        "process_vm_readv": "",
        "open_files_soft": 1024,
        "open_files_hard": 524288,
        "huge_pages": "madvise",
        "memory_bytes": 8 << 30,
        "cgroup_memory_bytes": None,
        "shm_bytes": None,
        "shm_free_bytes": None,
        "rdma_cm": "usable",
        "socket_folder": {"path": "/run/user/1000/rrpc", "writable": True},
    }
    assert set(fine) == LIMITS
    return fine | changed


def problems(adapters: list[dict[str, str]], **changed: Any) -> list[tuple[str, str, str]]:
    found = machine.problems({"shm": {"usable": True, "why_not": ""}}, adapters, limits(**changed))
    return [(item["about"], item["what"], item["cure"]) for item in found]


def test_limits_in_words(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "limits", lambda: limits(memlock_soft_bytes=65536, ptrace_scope=2))
    assert info.main([]) == 0
    out = capsys.readouterr().out
    assert "soft 64 KiB, hard unlimited (ulimit -l: what verbs may pin)" in out
    assert "/dev/shm      not there" in out
    assert "ptrace_scope  2: no reading each other" in out
    assert "open files    soft 1024, hard 524288" in out


def test_a_machine_without_a_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "limits", limits)
    monkeypatch.setattr(rrpc, "transports", lambda: {"shm": "", "tcp": ""})
    monkeypatch.setattr(rrpc, "adapters", list)
    assert info.main([]) == 0
    assert capsys.readouterr().out.endswith("problems\n  none\n")


COPY = "shm copies ordinary arrays once more (rrpc.empty's are not)"
USABLE = [{"name": "rxe0", "port": "1", "addresses": "10.9.0.1"}]
FROM_HERE = "; in a container pass /dev/infiniband in; or use verbs+tcp://"
MEMLOCK = (
    "ulimit -l unlimited (allowed by '* - memlock unlimited' in /etc/security/limits.conf); "
    "systemd: LimitMEMLOCK=infinity; container: --ulimit memlock=-1"
)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"memlock_soft_bytes": 65536, "memlock_hard_bytes": 65536}, ("memlock", "64 KiB", MEMLOCK)),
        ({"memlock_soft_bytes": 65536}, ("memlock", "64 KiB", "ulimit -l hard")),
        (
            {"ptrace_scope": 1},
            (
                "ptrace_scope",
                f"1: processes may not read each other, {COPY}",
                "sysctl kernel.yama.ptrace_scope=0 (and in /etc/sysctl.d/), or the capability CAP_SYS_PTRACE",
            ),
        ),
        (
            {"process_vm_readv": "Operation not permitted"},
            (
                "process_vm_readv",
                f"it is refused (Operation not permitted): {COPY}",
                "allow it in the container's seccomp profile, or docker run --cap-add SYS_PTRACE",
            ),
        ),
        (
            {"huge_pages": "never"},
            (
                "huge pages",
                "transparent huge pages are off: large results cost more page faults",
                "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
            ),
        ),
        (
            {"open_files_hard": 1024},
            (
                "open files",
                "at most 1024: enough for some 341 connections",
                (
                    "'* - nofile 65536' in /etc/security/limits.conf; systemd: LimitNOFILE=65536; "
                    "container: --ulimit nofile=65536"
                ),
            ),
        ),
        (
            {"rdma_cm": "not there"},
            (
                "rdma_cm",
                "/dev/infiniband/rdma_cm: not there, so verbs:// can't connect",
                f"modprobe rdma_ucm{FROM_HERE}",
            ),
        ),
        (
            {"rdma_cm": "no permission"},
            (
                "rdma_cm",
                "/dev/infiniband/rdma_cm: no permission, so verbs:// can't connect",
                f"let this user open it (a udev rule){FROM_HERE}",
            ),
        ),
        (
            {"socket_folder": {"path": "/run/x/rrpc", "writable": False}},
            (
                "shm names",
                "/run/x/rrpc can't be written, so shm://name has no place",
                "set XDG_RUNTIME_DIR to a folder of this user, or use shm:///path.sock",
            ),
        ),
    ],
)
def test_every_problem_has_its_cure(changed: dict[str, Any], expected: tuple[str, str, str]) -> None:
    about, what, cure = expected
    if about == "memlock":
        what = f"adapters may pin only {what} of this process's memory"
    assert problems(USABLE, **changed) == [(about, what, cure)]


def test_what_is_no_problem() -> None:
    small = {"memlock_soft_bytes": 65536, "memlock_hard_bytes": 65536}
    assert problems(USABLE) == []
    assert problems(USABLE, **small, may_lock_all=True) == []  # CAP_IPC_LOCK goes before the limit
    assert problems([], **small, rdma_cm="not there") == []  # both are for adapters
    assert problems([], ptrace_scope=1, may_trace_all=True) == []


@pytest.mark.parametrize(
    ("reason", "what", "cure"),
    [
        (DOWN, "port 1 of siw0 is down", "ip link set INTERFACE up"),
        (
            "rdma-core's libraries are not installed (librdmacm.so.1: no such file); Debian and Ubuntu: apt ...",
            "rdma-core's libraries are not installed (librdmacm.so.1: no such file)",
            "apt install libibverbs1 librdmacm1 ibverbs-providers; Fedora and RHEL: dnf install libibverbs librdmacm",
        ),
        (
            "this build of rrpc has no verbs provider (there is no x.so); build it where ...",
            "this build of rrpc has no verbs provider (there is no x.so)",
            "apt install libibverbs-dev librdmacm-dev, then build rrpc again",
        ),
        ("a reason: that is new", "a reason: that is new", "see docs/rdma.md, section 6"),
    ],
)
def test_reasons_and_cures(reason: str, what: str, cure: str) -> None:
    assert machine.split_reason(reason) == (what, cure)
    found = machine.problems({"verbs": {"usable": False, "why_not": reason}}, [], limits())
    assert found == [{"about": "verbs", "what": what, "cure": cure}]


def test_an_adapter_without_an_address() -> None:
    ((about, what, _),) = problems([{"name": "mlx5_0", "port": "1"}])
    assert (about, what) == (
        "mlx5_0 port 1",
        "its network interface has no IP address, so verbs:// can't reach it",
    )


def test_a_connection(capsys: pytest.CaptureFixture[str], lab_server: LabServer) -> None:
    address = lab_server.address("rrpc")
    assert info.main([address]) == 0
    out = capsys.readouterr().out
    assert f"  address       {address}" in out
    assert "  transport     shm" in out
    assert info.main([address, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["connection"]["transport"] == "shm"


def test_a_connection_that_is_not_the_best(
    capsys: pytest.CaptureFixture[str], lab_server: LabServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RRPC_TRANSPORTS", "tcp")
    assert info.main([lab_server.address("rrpc")]) == 0
    assert "  not shm       the transports option leaves it out" in capsys.readouterr().out


def between(capsys: pytest.CaptureFixture[str], *addresses: str, status: int = 0) -> list[str]:
    """The lines on the choice; and the JSON says the same."""
    assert info.main([*addresses]) == status
    out = capsys.readouterr().out
    assert info.main([*addresses, "--json"]) == status
    found = json.loads(capsys.readouterr().out)["choice"]
    lines = out[out.index("\nbetween ") + 1 :].splitlines()
    assert f"  chosen        {found['transport'] or 'none'}" in lines[1 + ("no_answer" in found)]
    return lines


def test_between_two_addresses_by_connecting(
    capsys: pytest.CaptureFixture[str], lab_server: LabServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = lab_server.address("rrpc")
    lines = between(capsys, "127.0.0.1", address)
    assert lines == [
        f"between 127.0.0.1 and {address} (tried by connecting)",
        "  chosen        shm: both ends are on one host",
    ]
    monkeypatch.setenv("RRPC_TRANSPORTS", "tcp")
    assert between(capsys, "localhost", address)[1:3] == [
        "  chosen        tcp: nothing better can be had between the two",
        "  not shm       the transports option leaves it out",
    ]
    monkeypatch.delenv("RRPC_TRANSPORTS")
    plain = address.removeprefix("rrpc://")
    assert between(capsys, "localhost", plain)[1].endswith("shm: both ends are on one host")
    tcp = lab_server.address("tcp")
    assert between(capsys, "localhost", tcp)[1].endswith("tcp: the address asks for tcp://")


def test_between_two_addresses_by_reasoning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert between(capsys, "localhost", "127.0.0.1") == [
        "between localhost and 127.0.0.1 (reasoned from this end, not tried)",
        "  chosen        shm: 127.0.0.1 is this host",
    ]
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        lines = between(capsys, "localhost", address)
    assert lines[1] == (
        f"  not tried     connecting to rrpc://{address}: cannot connect to {address}: Connection refused; "
        "is the server running there?"
    )
    assert lines[2] == "  chosen        shm: 127.0.0.1 is this host"
    monkeypatch.setenv("RRPC_TRANSPORTS", "verbs,tcp")
    monkeypatch.setattr(rrpc, "transports", lambda: {"shm": "", "tcp": "", "verbs": ""})
    adapter = {"name": "rxe0", "port": "1", "transport": "RoCE", "addresses": "127.0.0.1"}
    monkeypatch.setattr(rrpc, "adapters", lambda: [adapter])
    assert between(capsys, "127.0.0.1", "127.0.0.1")[1:] == [
        (
            "  chosen        verbs: if 127.0.0.1 has a usable RoCE adapter too: the route there leaves by rxe0 "
            "(127.0.0.1); else tcp"
        ),
        "  not shm       RRPC_TRANSPORTS leaves it out",
    ]
    adapter["addresses"] = "127.0.0.2"  # B's own, which the route to it leaves from
    assert "leaves by rxe0 (127.0.0.2)" in between(capsys, "127.0.0.1", "127.0.0.2")[1]
    adapter["addresses"] = "10.1.1.1"
    assert between(capsys, "127.0.0.1", "127.0.0.1")[1:] == [
        "  chosen        tcp: nothing better can be had between the two",
        "  not shm       RRPC_TRANSPORTS leaves it out",
        "  not verbs     the route to 127.0.0.1 leaves from 127.0.0.1, which is no address of an adapter (rxe0)",
    ]


def test_the_route_decides_which_adapter_counts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "_source", lambda address, port: "10.9.0.1")
    monkeypatch.setattr(rrpc, "transports", lambda: {"shm": "", "tcp": "", "verbs": ""})
    adapter = {"name": "rxe0", "port": "1", "transport": "RoCE", "addresses": "10.9.0.1"}
    monkeypatch.setattr(rrpc, "adapters", lambda: [adapter])
    assert between(capsys, "127.0.0.1", "192.0.2.1")[1:] == [
        (
            "  chosen        verbs: if 192.0.2.1 has a usable RoCE adapter too: the route there leaves by rxe0 "
            "(10.9.0.1); else tcp"
        ),
        "  not shm       192.0.2.1 is another host",
        "  note          this machine's route to 192.0.2.1 leaves from 10.9.0.1, not from 127.0.0.1",
    ]
    adapter["why_not"] = DOWN
    assert between(capsys, "127.0.0.1", "192.0.2.1")[1] == (
        "  chosen        tcp: nothing better can be had between the two"
    )


def test_an_insisted_transport_that_cannot_be_had(capsys: pytest.CaptureFixture[str]) -> None:
    lines = between(capsys, "127.0.0.1", "shm:///nowhere/x.sock", status=1)
    assert lines[1] == "  chosen        none"
    assert "/nowhere/x.sock" in lines[2]


@pytest.mark.parametrize(
    ("addresses", "line"),
    [
        (["a", "b", "c"], "rrpc-info: more than two addresses (see rrpc-info --help)"),
        (["192.0.2.77", "127.0.0.1"], ("rrpc-info: 192.0.2.77 is no address of this machine, whose devices alone are "
         "seen from here: give one of its own first, or run rrpc-info there")),
        (["127.0.0.1", "tcp://127.0.0.1"], ("rrpc-info: tcp://127.0.0.1: no port; write tcp://127.0.0.1:7471, or "
         "127.0.0.1 alone")),
        (["127.0.0.1", "http://127.0.0.1:80"], ("rrpc-info: http://127.0.0.1:80: the unknown scheme 'http'; known are "
         "rrpc, rrpcs, tcps, shm, tcp, verbs, verbs+tcp")),
        (["127.0.0.1", "127.0.0.1:99999"], "rrpc-info: 127.0.0.1:99999: '99999' is no port"),
    ],
)  # fmt: skip
def test_bad_addresses(capsys: pytest.CaptureFixture[str], addresses: list[str], line: str) -> None:
    try:
        status = info.main(addresses)
    except SystemExit as ended:
        status = int(ended.code or 0)
    assert status == 2
    assert capsys.readouterr().err == line + "\n"
