"""A part of the faults of `make faults`: see tests/faults and docs/reliability.md."""

import struct
from typing import Any

from faults.cases import STYLES, Case, drawn, kinds
from faults.gate import CLIENT, SERVER, Gate, message_name
from faults.judge import Judge
from faults.lane import Ends
from faults.soak import Soak
from processes import TESTS, run, volume
from raw_peer import FRAME, PING, message


def test_faults() -> None:
    command = ["-m", "tests.faults", "--cases", "40", "--seed", "3", "--lanes", "8"]
    done = run(*command, cwd=TESTS.parent, timeout=150, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "faults: 40 cases" in done.stdout


def test_a_read_that_is_cut_off_names_the_reason() -> None:
    """It ended with 'flushed', an adapter's word for work that was dropped."""
    done = run(
        "-m",
        "tests.faults",
        "--case",
        "READ/corrupt header/tcp/blocking/703907",
        cwd=TESTS.parent,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_a_round_of_the_soak() -> None:
    ends = Ends()
    try:
        soak = Soak(ends, seed=1)
        for _ in range(2):
            soak.round(volume(0.5, 2.0))
        assert soak.wrong == []
        assert sum(soak.done.values()) > soak.done["clients killed"] > 0
        assert soak.growth().keys() == soak.memory.keys()
    finally:
        ends.close()


def test_every_kind_comes_as_often_as_the_others() -> None:
    every = kinds(("shm", "tcp"))
    cases = list(drawn(2 * len(every), 1))
    found = sorted((case.step, case.action, case.transport, case.style) for case in cases)
    assert found == sorted(every * 2)
    assert {case.style for case in cases} == set(STYLES)
    assert list(drawn(50, 1)) == cases[:50]
    assert all(Case.parse(str(case)) == case for case in cases)


def test_the_gate_stops_one_message() -> None:
    gate = Gate()
    ping = message(PING)[FRAME.size :]
    assert message_name(ping) == "PING"
    assert message_name(struct.pack("<H", 1) + ping[2:]) == ""
    gate.arm(CLIENT, "PING", 2)
    assert gate.passes(SERVER, "PING", ping) == ping
    assert gate.passes(CLIENT, "PING", ping) == ping
    assert not gate.reached(0.0, lambda: False)


def wait(**fields: object) -> dict[str, object]:
    usual = {"name": "echo", "timeout": None, "began": 10.0, "ended": 10.5, "error": "", "message": ""}
    return {**usual, "right": not fields.get("error"), **fields}


def judged(action: str, lateness: float = 0.0, **fields: Any) -> list[str]:
    """What is wrong with one wait amid a fault that came at 10 s."""
    judge = Judge(Case("REPLY", action, "tcp", "blocking", 1), lambda begin, end: lateness)
    judge.fault_at = 10.0
    judge.waits([wait(**fields)])
    return judge.problems


def test_what_is_promised_is_asked_for() -> None:
    unavailable: dict[str, Any] = {"error": "Unavailable", "message": "peer closed the connection"}
    assert judged("cut", **unavailable) == []
    assert judged("cut", **unavailable, ended=11.2) == ["echo ended 200 ms too late"]
    assert judged("cut", **unavailable, ended=11.2, lateness=0.1) == []
    assert (
        judged("stop server", error="Unavailable", message="the peer has been silent for 2 s", ended=12.9)
        == []
    )
    late: dict[str, Any] = {
        "error": "DeadlineExceeded",
        "message": "echo() was not done within its timeout of 0.3 s",
        "timeout": 0.3,
    }
    assert judged("silence", **late, ended=10.35) == []
    assert judged("silence", **late, ended=10.45) == ["echo ended 50 ms too late"]
    assert judged("cut", error="Internal", message="?") == ["echo: Internal: ?"]
    assert judged("cut", error="Unavailable", message="flushed") == ["echo: Unavailable: flushed"]
    assert judged("delay", right=False) == ["echo: a wrong result"]
    assert judged("delay", **unavailable) == ["echo: Unavailable: peer closed the connection"]
