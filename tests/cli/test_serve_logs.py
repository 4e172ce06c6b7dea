"""rrpc-serve's logs: text and JSON, the access log and its rotation, what is told to systemd and to scripts."""

import json
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import Served, ServeFactory, eventually, run_serve

import rrpc

MODULE = """
import logging, time
from collections.abc import Iterator
import numpy as np, rrpc
from numpy.typing import NDArray

@rrpc.service
class Logged:
    @rrpc.method
    def half(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return values[::2].copy()

    @rrpc.method
    def say(self, level: str) -> None:
        logging.getLogger("mine").log(logging.getLevelName(level), "said %s\\nand more", level, extra={"size": 3})

    @rrpc.method
    def slow(self, seconds: float) -> None:
        time.sleep(seconds)

    @rrpc.method
    def fail(self) -> None:
        raise ZeroDivisionError("oh")

    @rrpc.method
    def count(self, until: int) -> Iterator[int]:
        yield from range(until)
"""
RFC3339 = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def connect(served: Served, address: str = "") -> rrpc.Client:
    return rrpc.connect(address or served.address, timeout=20.0)


def announced(served: Served) -> str:
    """The address of a server whose start-up line is JSON."""

    def found() -> str:
        return next((line["address"] for line in lines_of(served.log) if line["message"] == "serving"), "")

    return eventually(found)


def test_json_lines(serve: ServeFactory) -> None:
    served = serve(
        MODULE, "Logged", listen=[], args=["--log-format", "json", "--listen", "tcp://127.0.0.1:0"]
    )
    with connect(served, announced(served)) as client:
        client.call("Logged.say", "WARNING")
        client.call("Logged.say", "INFO")  # below the level
        with pytest.raises(rrpc.RemoteError):
            client.call("Logged.fail")
        assert served.terminate() == 0
    lines = lines_of(served.log)
    assert all(re.fullmatch(RFC3339, line["time"]) for line in lines)
    assert [(line["level"], line["logger"], line["message"]) for line in lines] == [
        ("info", "rrpc.serve", "serving"),
        ("warning", "mine", "said WARNING\nand more"),
        ("error", "rrpc.server", "Logged.fail() raised"),
    ]
    assert lines[0]["services"] == "Logged"
    assert lines[1]["size"] == 3
    assert lines[2]["exception"] == "ZeroDivisionError"
    assert "in fail" in lines[2]["traceback"]


def test_json_lines_of_what_goes_wrong(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    done = run_serve("mine:Logged", "--log-format", "json", "--listen", "http://x", cwd=tmp_path)
    assert done.returncode == 2
    (line,) = lines_of(done.stderr)
    assert (line["level"], line["logger"]) == ("error", "rrpc.serve")
    assert "scheme" in line["message"]


def test_access_log_in_json(serve: ServeFactory, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    served = serve(MODULE, "Logged", args=["--access-log", str(log), "--log-format", "json"], listen=[])
    before = time.time()
    address = announced(served)
    with connect(served, address) as client:
        client.call("Logged.half", np.zeros(100_000))
        with pytest.raises(rrpc.RemoteError):
            client.call("Logged.fail")
        with pytest.raises(rrpc.Unimplemented):
            client.call('no such\nmethod "', 1)
        client.call("Logged.slow", 0.05)
        assert len(list(rrpc.open_stream(client, "Logged.count", 7))) == 7
        eventually(lambda: len(lines_of(log.read_text())) == 5)
    # A line is written after its reply, so the next call's may come before it.
    lines = {line["method"]: line for line in lines_of(log.read_text())}
    half, slow, counted = (lines[f"Logged.{name}"] for name in ("half", "slow", "count"))
    assert re.fullmatch(RFC3339, half["time"])
    assert half["time"] >= time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(before - 1))
    assert re.search(r"\d", half["peer"])
    assert half["code"] == "OK"
    assert (half["request_bytes_read"], half["reply_bytes_lifted"]) == (800_000, 400_000)
    assert half["duration_ms"] >= half["handler_ms"] > 0
    assert lines["Logged.fail"]["code"] == "UNKNOWN"
    assert lines['no such\nmethod "']["code"] == "UNIMPLEMENTED"
    assert 50 <= slow["handler_ms"] < 2000
    assert [(line["items_received"], line["items_sent"]) for line in (slow, counted)] == [(0, 0), (0, 7)]


def test_access_log_in_text_and_its_rotation(serve: ServeFactory, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    served = serve(MODULE, "Logged", args=["--access-log", str(log)])

    def calls(path: Path, count: int) -> list[str]:
        eventually(lambda: len(path.read_text().splitlines()) == count)
        return path.read_text().splitlines()

    with connect(served) as client:
        client.call("Logged.slow", 0.0)
        with pytest.raises(rrpc.Unimplemented):
            client.call("no such\nmethod")
        assert len(list(rrpc.open_stream(client, "Logged.count", 7))) == 7
        written = calls(log, 3)  # each after its reply: the next call's may have come before it
        (first,), (second,), (third,) = (
            [line for line in written if each in line] for each in ("slow", "such", "count")
        )
        times = r"\d+\.\d+ms fetch=\d+\.\d+ms queue=\d+\.\d+ms handler=\d+\.\d+ms"
        assert re.fullmatch(rf"{RFC3339} \S+ Logged\.slow OK {times} in=\d+\+0 out=1\+0", first)
        assert re.search(r' "no such\\nmethod" UNIMPLEMENTED ', second)
        assert re.fullmatch(rf"{RFC3339} \S+ Logged\.count OK {times} in=\d+\+0 out=\d+\+0 items=0\+7", third)
        log.rename(tmp_path / "old.log")
        client.call("Logged.slow", 0.0)
        assert len(calls(tmp_path / "old.log", 4)) == 4
        served.signal(signal.SIGHUP)
        eventually(log.exists)
        client.call("Logged.slow", 0.0)
        assert len(calls(log, 1)) == 1
    assert served.terminate() == 0


def test_a_reload_takes_the_log_level(serve: ServeFactory, tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('log-level = "error"')
    served = serve(MODULE, "Logged", args=["--config", str(file)])
    with connect(served) as client:
        client.call("Logged.say", "WARNING")
        file.write_text('log-level = "loud"')
        served.signal(signal.SIGHUP)
        eventually(lambda: "'loud' isn't one of" in served.log)
        file.write_text('log-level = "info"')
        served.signal(signal.SIGHUP)
        eventually(lambda: "reloaded" in served.log)
        client.call("Logged.say", "INFO")
        eventually(lambda: "said INFO" in served.log)
    assert "said WARNING" not in served.log
    assert served.terminate() == 0


def test_an_access_log_that_can_t_be(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    done = run_serve("mine:Logged", "--access-log", "/no/such/file", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        "rrpc-serve: --access-log /no/such/file: No such file or directory\n",
    )


@pytest.fixture(params=["path", "abstract"])
def listener(request: pytest.FixtureRequest, short_tmp: Path) -> Iterator[tuple[str, socket.socket]]:
    """What systemd listens on, and how NOTIFY_SOCKET names it."""
    name = str(short_tmp / "notify")
    if request.param == "abstract":
        name = f"@rrpc-test-{short_tmp.name}"
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind(name.replace("@", "\0"))
    sock.settimeout(10)
    yield name, sock
    sock.close()


def test_systemd_is_told(serve: ServeFactory, listener: "tuple[str, socket.socket]", tmp_path: Path) -> None:
    name, sock = listener
    (tmp_path / "serve.toml").write_text("workers = 2")

    def told() -> dict[str, str]:
        return dict(line.split("=", 1) for line in sock.recv(4096).decode().split("\n"))

    served = serve(
        MODULE,
        "Logged",
        args=["--config", "serve.toml"],
        env={"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "100000"},
    )
    ready = told()
    assert (ready["READY"], ready["MAINPID"]) == ("1", str(served.pid))
    assert served.address in ready["STATUS"]
    assert told() == {"WATCHDOG": "1"}  # more than once, and at least as often as asked
    start = time.monotonic()
    assert told() == {"WATCHDOG": "1"}
    assert time.monotonic() - start < 0.1 * 50
    served.signal(signal.SIGHUP)
    while "RELOADING" not in (reloading := told()):
        assert reloading == {"WATCHDOG": "1"}
    assert abs(int(reloading["MONOTONIC_USEC"]) / 1e6 - time.monotonic()) < 10
    assert told()["READY"] == "1"
    with connect(served) as client:
        held = client.start("Logged.slow", 0.5)
        client.call("Logged.slow", 0.0)
        served.signal(signal.SIGTERM)
        while "STOPPING" not in (stopping := told()):
            assert stopping == {"WATCHDOG": "1"}
        assert told() == {"WATCHDOG": "1"}, "the watchdog is fed while calls end, too"
        held.result()
    assert served.wait() == 0


def test_a_ready_file(serve: ServeFactory, tmp_path: Path) -> None:
    path = tmp_path / "ready"
    served = serve(MODULE, "Logged", listen=["tcp", "shm"], args=["--ready-file", str(path)])
    assert path.read_text().splitlines() == served.addresses
    with connect(served) as client:
        held = client.start("Logged.slow", 0.5)
        client.call("Logged.slow", 0.0)
        served.signal(signal.SIGTERM)
        eventually(lambda: not path.exists())
        assert not held.done()
        held.result()
    assert served.wait() == 0
