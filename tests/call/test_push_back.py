"""What a server says of the next attempt may be anything: the call ends with the server's error, and in time."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from counted_service import call_in_loop
from processes import patience

import rrpc
from rrpc import HedgingPolicy, RetryPolicy
from rrpc._call.retry import PUSH_BACK, PUSH_BACK_SECONDS_MAX, pushed_back
from rrpc._call.steps import Sleep

# More digits than a float has room for, more seconds than an event waits for, more than int() reads; and no numbers.
TEXTS = ("9" * 400, "9" * 300, "9" * 5000, "3600001", "-1", "1e3", "nan", "", " 1", "1_0", "٣", b"\xff", b"1")


@rrpc.service
class Asking:
    def __init__(self) -> None:
        self.text: str | bytes = ""
        self.runs = 0

    @rrpc.method(idempotent=True)
    def run(self) -> int:
        self.runs += 1
        rrpc.context().set_metadata({PUSH_BACK: self.text})
        raise rrpc.Unavailable("not now")


class _Run(rrpc.UnaryMethod[int]):
    rpc_name = "Asking.run"
    rpc_idempotent = True

    def __call__(self, *, timeout: float | None = None) -> int:
        return self._call((), timeout)

    def start(self, *, timeout: float | None = None) -> rrpc.Future[int]:
        return self._start((), timeout)


class AskingClient(rrpc.Client):
    run = rrpc.stub(_Run)


def _call(client: AskingClient) -> int:
    return client.run()


def _future(client: AskingClient) -> int:
    return client.run.start().result()


def _in_loop(client: AskingClient) -> int:
    made: int = call_in_loop(client.run)
    return made


def outcome(do: Callable[[], Any]) -> BaseException:
    """Returns what ``do`` raises, in a thread of its own: it might never end."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            do()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(patience(20))
    assert not thread.is_alive(), "the call never ends"
    return raised[0]


@pytest.mark.parametrize("use", [_call, _future, _in_loop])
@pytest.mark.parametrize("policy", ["retry", "hedging"])
def test_any_text_ends_the_call_with_its_error(policy: str, use: Callable[[AskingClient], int]) -> None:
    service = Asking()
    retry = RetryPolicy(budget=None) if policy == "retry" else None
    hedging = HedgingPolicy(delay=60.0, budget=None) if policy == "hedging" else None
    with (
        rrpc.serve(service, listen="tcp://127.0.0.1:0") as server,
        AskingClient(server.addresses[0], retry=retry, hedging=hedging) as client,
    ):
        for text in TEXTS:
            service.text, service.runs = text, 0
            error = outcome(lambda: use(client))
            assert type(error) is rrpc.Unavailable, (text, error)
            assert service.runs == 1, text


def test_what_may_be_asked_for() -> None:
    assert [pushed_back(text) for text in TEXTS] == [None] * len(TEXTS)
    assert pushed_back("0") == 0.0
    assert pushed_back("3600000") == PUSH_BACK_SECONDS_MAX


@pytest.mark.parametrize("use", [_call, _future])
def test_an_error_in_a_callback_of_hedging_ends_the_call(
    use: Callable[[AskingClient], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> None:
        raise MemoryError("a fault")

    with (
        rrpc.serve(Asking(), listen="tcp://127.0.0.1:0") as server,
        AskingClient(server.addresses[0], hedging=HedgingPolicy(delay=0.01, budget=None)) as client,
    ):
        with monkeypatch.context() as patch:  # when an attempt has ended
            patch.setattr("rrpc._client.hedging.pushed_back", broken)
            assert type(outcome(lambda: use(client))) is MemoryError
        with monkeypatch.context() as patch:  # when the reply is taken
            patch.setattr("rrpc._client.blocking_driver._Exchanging.take", _taken_broken)
            assert type(outcome(lambda: use(client))) is MemoryError


def _taken_broken(self: Any) -> Any:
    """Takes the driver, and leaves a call whose reply can't be had."""
    found = super(type(self), self).take()

    class Broken:
        def result(self, timeout: float) -> None:
            raise MemoryError("a fault")

    if found is not None:
        self._begun = Broken()
    return found


def test_a_sleep_has_an_end_that_events_can_wait_for() -> None:
    for seconds in (1e300, float("inf")):
        assert Sleep(seconds).seconds == threading.TIMEOUT_MAX
