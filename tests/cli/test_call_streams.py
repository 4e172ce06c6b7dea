"""rrpc-call of methods with streams."""

import io
import signal
import subprocess
import sys
from typing import Any

import pytest
from processes import child_environment, patience
from rrpc_call import Run


def test_streams(
    flow_server: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(flow_server.served.address, capsys)
    assert run("Flow.count", "n=3") == (0, "0\n1\n2\n", "")
    assert run("Flow.rows", "2", "name=x")[1].splitlines() == [
        '{"id": 0, "name": "x", "score": 0.0}',
        '{"id": 1, "name": "x", "score": 0.5}',
    ]
    assert run("Flow.add", "1", "2", "39") == (0, "42\n", "")
    monkeypatch.setattr("sys.stdin", io.StringIO("1\n2\n\n3\n"))
    assert run("Flow.sums") == (0, "1\n3\n6\n", "")
    assert run("Flow.count", "3", "true")[:2] == (1, "0\n1\n2\n")
    assert run.bad("Flow.count", "3", "-o", "here.npy").startswith("-o is for one result")
    assert run("Flow.add", "one") == (2, "", "rrpc-call: one: expected int, got str\n")


def test_a_stream_that_the_server_doesn_t_want_all_of(
    flow_server: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(flow_server.served.address, capsys)
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{i}\n" for i in range(7, 20_000))))
    assert run("Flow.first") == (0, "7\n", "")


def test_metadata_of_streams(flow_server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(flow_server.served.address, capsys)
    given = ["Flow.badges", "--metadata", "badge=blue", "--show-metadata"]
    assert run(*given) == (0, '"blue"\n', "room: 7\nleft: at noon\n")
    lines = "room: 7\nleft: at noon\nrrpc-call: ABORTED: fire\n"
    assert run(*given, "fail=true") == (1, '"blue"\n', lines)
    assert run("Flow.badges", "--metadata", "badge=blue") == (0, '"blue"\n', "")


def test_whoever_reads_the_items_may_go(flow_server: Any) -> None:
    command = [sys.executable, "-m", "rrpc.cli.call", flow_server.served.address, "Flow.count", str(1 << 40)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=child_environment()
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"0\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(patience(30)) == 128 + signal.SIGPIPE
