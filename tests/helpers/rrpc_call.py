"""rrpc-call against a server of call_service: what its tests share."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import address_to_listen_on
from processes import Served, ServeFactory

from rrpc.cli import call

SERVICE = (Path(__file__).parent / "call_service.py").read_text()
TRACK = '{"name": "walk", "points": [[0, 0], [1.5, 2]], "unit": "FOOT", "tags": ["slow"]}'


@pytest.fixture(scope="session")
def call_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("call")
    factory = ServeFactory(folder, address_to_listen_on)
    yield factory(
        SERVICE, "Kinds", "Odd", listen=["tcp", "shm", "rrpc"], module="call_service", args=["--tracebacks"]
    )
    factory.close()


class Run:
    """rrpc-call in this process: `rrpc_call("Kinds.plain", "a=1")` gives (exit code, stdout, stderr)."""

    def __init__(self, address: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.address = address
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        try:
            status = call.main([self.address, *arguments])
        except SystemExit as ended:
            status = int(ended.code or 0)
        out, err = self._capsys.readouterr()
        return status, out, err

    def result(self, *arguments: str) -> Any:
        status, out, err = self(*arguments)
        assert (status, err) == (0, "")
        return json.loads(out)

    def bad(self, *arguments: str) -> str:
        """The one line that says what was wrong with the usage."""
        status, out, err = self(*arguments)
        assert (status, out) == (2, "")
        assert err.startswith("rrpc-call: ")
        assert err.count("\n") == 1
        return err.removeprefix("rrpc-call: ").removesuffix("\n")


@pytest.fixture
def rrpc_call(call_server: Served, capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(call_server.address, capsys)
