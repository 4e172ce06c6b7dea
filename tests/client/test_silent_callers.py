"""Callers that never say which interface they have: the handler that asks them goes on in time."""

import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from processes import eventually, patience

import rrpc

OTHER = "0" * 32  # no server has this fingerprint, so the handler asks for the description


class _Heard(rrpc.UnaryMethod[str]):
    rpc_name = "Desk.heard"

    def __call__(self, text: str) -> str:
        return self._call((text,), None)


class DeskClient(rrpc.Client):
    rpc_fingerprints: ClassVar = {"Desk": OTHER}
    heard = rrpc.stub(_Heard)


@rrpc.service
class Asking:
    def __init__(self) -> None:
        self.ended: list[str] = []

    @rrpc.method
    def ask(self) -> None:
        try:
            rrpc.context().client(DeskClient)
        except rrpc.RpcError as error:
            self.ended.append(f"{type(error).__name__}: {error}")


@rrpc.service(name="rrpc.Reflection")
class Silent:
    """Describes nothing, and says so to nobody."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.over = threading.Event()

    @rrpc.method
    def describe(self, service: str) -> dict[str, Any]:
        self.asked.set()
        self.over.wait(patience(60))
        return {}


@pytest.fixture
def silent() -> Iterator[Silent]:
    service = Silent()
    yield service
    service.over.set()


@pytest.mark.parametrize("timeout", [0.5, None])
def test_a_caller_that_never_describes_itself(
    silent: Silent, timeout: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if timeout is None:
        monkeypatch.setattr("rrpc._channel.peer_channel._AGREE_SECONDS", 0.5)
    service = Asking()
    with (
        rrpc.serve(service, listen="tcp://127.0.0.1:0", workers=2) as server,
        rrpc.Server(silent, builtin=False) as mine,
        rrpc.connect(server.addresses[0], serve=mine) as client,
    ):
        call = client.start("Asking.ask", timeout=timeout)
        assert silent.asked.wait(patience(20))
        eventually(lambda: len(service.ended) == 1)
        assert "DeadlineExceeded: " in service.ended[0]
        assert "rrpc.Reflection.describe" in service.ended[0]
        call.exception(patience(20))
        silent.over.set()
