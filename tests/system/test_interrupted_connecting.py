"""Ctrl-C while a server that accepts and says nothing keeps a client from connecting."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from processes import child_environment, patience

CONNECT = """
import sys, threading, rrpc
try:
    rrpc.connect(sys.argv[1], connect_timeout=600.0)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(patience(20))
        yield listener


@pytest.mark.parametrize("scheme", ["rrpc", "tcp"])
def test_a_program(silent: socket.socket, scheme: str) -> None:
    address = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}"
    command = [sys.executable, "-c", CONNECT, address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=child_environment()) as process:
        connection = silent.accept()[0]
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=patience(20))[0] == b"interrupted\n"
        connection.close()
    assert process.returncode == 0


@pytest.mark.parametrize(("module", "arguments"), [("call", ["Service.method"]), ("info", [])])
def test_a_command(silent: socket.socket, module: str, arguments: list[str]) -> None:
    address = f"rrpc://127.0.0.1:{silent.getsockname()[1]}"
    program = (
        f"import sys; from rrpc.cli.{module} import main; sys.argv[0] = 'rrpc-{module}'; sys.exit(main())"
    )
    command = [sys.executable, "-c", program, address, *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=child_environment()) as process:
        connection = silent.accept()[0]
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=patience(20))[1] == f"rrpc-{module}: interrupted\n".encode()
        connection.close()
    assert process.returncode == 128 + signal.SIGINT
