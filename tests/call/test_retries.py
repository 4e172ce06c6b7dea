"""Calling again: what may be, how soon, how often; and that nothing runs twice that mustn't."""

import threading
import time
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from counted_service import CountedClient, call_in_loop
from fleet import Fleet, fleet, nursery, scheme, wait_until_gone
from processes import eventually, patience

import rrpc
from rrpc import HedgingPolicy, RetryBudget, RetryPolicy, StatusCode
from rrpc._call.retry import PUSH_BACK
from rrpc._channel.ejection import Record

__all__ = ["fleet", "nursery", "scheme"]

QUICK = rrpc.Backoff(initial=0.02, maximum=0.1)
POLICY = RetryPolicy(max_attempts=4, initial_backoff=0.01, max_backoff=0.05, budget=None)
Use = Callable[..., Any]


@pytest.fixture(params=["call", "future", "asyncio"])
def use(request: pytest.FixtureRequest) -> Use:
    """Calls a method in one of the styles."""
    if request.param == "asyncio":
        return call_in_loop
    if request.param == "call":
        return lambda method, *args, **options: method(*args, **options)
    return lambda method, *args, **options: method.start(*args, **options).result(patience(60))


# The rules


class _Call:
    """As much of an outgoing call as policies look at."""

    def __init__(
        self,
        idempotent: bool = True,
        may_have_run: bool = True,
        left: float | None = None,
        connection: object = None,
    ) -> None:
        self.idempotent = idempotent
        self.may_have_run = may_have_run
        self._left = left
        self.connection = connection

    def time_left(self) -> float | None:
        return self._left


def delay(policy: RetryPolicy, error: rrpc.RpcError, attempt: int = 1, **call: Any) -> float | None:
    return policy.delay(_Call(**call), error, attempt)  # type: ignore[arg-type]


def test_what_may_be_called_again() -> None:
    policy = RetryPolicy(codes=(StatusCode.UNAVAILABLE, StatusCode.ABORTED), budget=None)
    assert delay(policy, rrpc.Unavailable("x")) is not None
    assert delay(policy, rrpc.Aborted("x")) is not None
    assert delay(policy, rrpc.Internal("x")) is None
    assert delay(policy, rrpc.Unavailable("x"), idempotent=False) is None
    assert delay(policy, rrpc.Unavailable("x"), idempotent=False, may_have_run=False) is not None
    assert delay(policy, rrpc.Internal("x"), idempotent=False, may_have_run=False) is None
    assert delay(policy, rrpc.Unavailable("x"), attempt=3) is not None
    assert delay(policy, rrpc.Unavailable("x"), attempt=4) is None


def test_how_long_to_wait() -> None:
    policy = RetryPolicy(
        max_attempts=99, initial_backoff=0.1, max_backoff=1.0, multiplier=2, jitter=0.5, budget=None
    )
    for attempt, most in {1: 0.1, 2: 0.2, 4: 0.8, 5: 1.0, 60: 1.0}.items():
        delays = [policy.backoff(attempt) for _ in range(300)]
        assert most / 2 <= min(delays) < 0.6 * most
        assert 0.9 * most < max(delays) <= most
    full = [RetryPolicy(initial_backoff=1.0).backoff(1) for _ in range(300)]
    assert min(full) < 0.1
    assert max(full) <= 1.0
    assert delay(policy, rrpc.Unavailable("x"), left=0.01) is None  # it would pass the deadline
    assert delay(policy, rrpc.Unavailable("x"), left=5.0) is not None


@pytest.mark.parametrize("multiplier", [1e300, float("inf"), 10**300])
def test_waits_grow_up_to_their_limit_by_any_factor(multiplier: float) -> None:
    policy = RetryPolicy(max_backoff=1.0, multiplier=multiplier, jitter=0.0)
    assert [policy.backoff(attempt) for attempt in (1, 2, 900)] == [0.05, 1.0, 1.0]
    assert RetryPolicy(initial_backoff=0.0, multiplier=multiplier).backoff(9) == 0.0
    assert rrpc.Backoff(multiplier=multiplier, jitter=0.0).delay(9) == 15.0
    record, ejection = Record(), rrpc.Ejection(failures=1, multiplier=multiplier)
    for now in (100.0, 200.0, 300.0):
        record.failed(rrpc.Unavailable("x"), now, ejection)
    assert record.ejected_until == 360.0


def test_a_server_may_say_when() -> None:
    policy = RetryPolicy(budget=None)
    error = rrpc.Unavailable("x")
    for text, expected in {"250": 0.25, "0": 0.0, "-1": None, "soon": None}.items():
        error.metadata = {PUSH_BACK: text}
        assert delay(policy, error) == expected


def test_backoff_begins_anew_when_a_server_has_said_when() -> None:
    policy = RetryPolicy(max_attempts=9, initial_backoff=0.1, jitter=0.0, budget=None)
    steps = policy.link(_Call())  # type: ignore[arg-type]
    next(steps)
    slept = []
    for pushed_back in (None, None, "50", None, None):
        error = rrpc.Unavailable("x")
        error.metadata = {} if pushed_back is None else {PUSH_BACK: pushed_back}
        slept.append(steps.throw(error).seconds)
        next(steps)
    assert slept == [0.1, 0.2, 0.05, 0.1, 0.2]


def test_the_budget() -> None:
    budget = RetryBudget(tokens=4, ratio=0.5)
    policy = RetryPolicy(budget=budget)
    assert delay(policy, rrpc.Unavailable("x")) is not None  # 3 are left
    assert delay(policy, rrpc.Unavailable("x")) is None  # 2, which isn't more than half
    for _ in range(2):
        budget.succeeded()
    assert budget.left == 3.0
    assert delay(policy, rrpc.NotFound("x")) is None
    assert budget.left == 3.0  # not a failure that may pass
    for _ in range(9):
        budget.succeeded()
    assert budget.left == 4.0


class _Lost:
    """A connection that was lost."""

    def usable(self) -> bool:
        return False


def test_a_lost_connection_costs_the_budget_one_token() -> None:
    budget = RetryBudget(tokens=4)
    policy = RetryPolicy(budget=budget)
    first, second = _Lost(), _Lost()
    assert all(delay(policy, rrpc.Unavailable("x"), connection=first) is not None for _ in range(64))
    assert budget.left == 3.0
    assert delay(policy, rrpc.Unavailable("x"), connection=second) is None
    assert budget.left == 2.0
    assert delay(policy, rrpc.Aborted("x"), connection=first) is None  # not one of the codes
    refused = rrpc.Unavailable("x")
    refused._answered = True  # by a handler, as the last thing that came
    assert delay(policy, refused, connection=first) is None
    assert budget.left == 1.0


def test_calls_that_reach_no_server_cost_the_budget_nothing() -> None:
    budget = RetryBudget(tokens=4)
    policy = RetryPolicy(budget=budget)
    for _ in range(64):
        error = rrpc.Unavailable("no connection")
        error.not_executed = True
        assert delay(policy, error, may_have_run=False) is not None
    assert budget.left == 4.0


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: RetryPolicy(max_attempts=0),
        lambda: RetryPolicy(max_attempts=1001),
        lambda: RetryPolicy(initial_backoff=float("nan")),
        lambda: RetryPolicy(multiplier=float("nan")),
        lambda: RetryPolicy(jitter=2),
        lambda: RetryPolicy(codes=[99]),  # type: ignore[list-item]
        lambda: RetryBudget(tokens=0),
        lambda: HedgingPolicy(delay=-1),
        lambda: HedgingPolicy(delay=float("nan")),
        lambda: HedgingPolicy(delay=1.0, max_attempts=1001),
        lambda: rrpc.Client("shm://x", lazy=True, retry=RetryPolicy(), hedging=HedgingPolicy(1.0)),
    ],
)
def test_wrong_use(wrong: Callable[[], object]) -> None:
    with pytest.raises(ValueError):
        wrong()


# Retries


def test_a_call_that_fails_is_made_again(fleet: Fleet, scheme: str, use: Use) -> None:
    (server,) = fleet.members(1, scheme)
    with CountedClient(server.address, retry=POLICY, timeout=patience(20)) as client:
        assert use(client.moody, "twice", 2, 14) == "server0"
        assert fleet.runs().count("twice") == 3
        with pytest.raises(rrpc.Unavailable, match="in a mood"):
            use(client.moody, "always", 99, 14)
        assert fleet.runs().count("always") == 4
        with pytest.raises(rrpc.Aborted):
            use(client.moody, "other-code", 1, 10)
        assert fleet.runs().count("other-code") == 1


def test_what_is_not_idempotent_runs_once(fleet: Fleet, scheme: str, use: Use) -> None:
    (server,) = fleet.members(1, scheme)
    with CountedClient(server.address, retry=POLICY, backoff=QUICK) as client:
        server.told("fail")
        with pytest.raises(rrpc.Unavailable, match="told to fail"):
            use(client.once, "x")
        assert fleet.runs() == ["x"]
        with pytest.raises(rrpc.Unavailable):
            client.call("Counted.often", "y")  # by name nothing is known of the method
        assert fleet.runs() == ["x", "y"]


class _Calls(rrpc.ClientInterceptor):
    """Makes a call of another server, which is down, once its call has been answered."""

    def unary(self, call: Any) -> Any:
        result = yield call
        with rrpc.Client("tcp://127.0.0.1:1", lazy=True) as other:
            other.call("Audit.note", call.method)
        return result


def test_what_an_interceptor_calls_says_nothing_of_its_own_call(fleet: Fleet, use: Use) -> None:
    (server,) = fleet.members(1, "shm")
    interceptors = [rrpc.interceptors.Retry(POLICY), _Calls()]
    with CountedClient(server.address, interceptors=interceptors) as client:
        with pytest.raises(rrpc.Unavailable) as raised:
            use(client.once, "once")
        assert raised.value.not_executed  # the call of the interceptor
        assert fleet.runs() == ["once"]
        with pytest.raises(rrpc.Unavailable):
            use(client.often, "often")
        assert fleet.runs().count("often") == 4


def test_what_never_left_is_made_again(fleet: Fleet, scheme: str, use: Use) -> None:
    (server,) = fleet.members(1, scheme)
    policy = RetryPolicy(max_attempts=100, initial_backoff=patience(0.02), multiplier=1.0, budget=None)
    with CountedClient(server.address, backoff=QUICK, retry=policy) as client:
        assert use(client.once, "before") == "server0"
        server.kill()
        wait_until_gone(server.pid)
        eventually(lambda: client.info()["state"] != "connected")
        answers: list[str] = []
        thread = threading.Thread(target=lambda: answers.append(use(client.once, "between")))
        thread.start()
        eventually(lambda: client.info()["channel"]["state"] == "transient_failure")
        server.start()
        thread.join(patience(20))
        assert answers == ["server0"]
    assert fleet.runs() == ["before", "between"]


def test_never_past_the_deadline(fleet: Fleet, scheme: str, use: Use) -> None:
    (server,) = fleet.members(1, scheme)
    server.told("fail")
    policy = RetryPolicy(max_attempts=1000, initial_backoff=0.05, multiplier=1.0, jitter=0.0, budget=None)
    with CountedClient(server.address, retry=policy) as client:
        start = time.monotonic()
        with pytest.raises((rrpc.Unavailable, rrpc.DeadlineExceeded)):
            use(client.often, "x", timeout=1.0)
        assert time.monotonic() - start < patience(20)  # 10,000 attempts take minutes
        assert 2 <= len(fleet.runs()) <= 21


def test_a_budget_ends_retries(fleet: Fleet, use: Use) -> None:
    (server,) = fleet.members(1, "shm")
    server.told("fail")
    policy = RetryPolicy(max_attempts=99, initial_backoff=0.001, budget=RetryBudget(tokens=10))
    with CountedClient(server.address, retry=policy) as client:
        for _ in range(20):
            with pytest.raises(rrpc.Unavailable):
                use(client.often, "x")
        # 4 of the 10 tokens may be used for that.
        assert len(fleet.runs()) == 20 + 4
        with pytest.raises(
            rrpc.Unavailable, match=r"told to fail; .* 0 of the 10 tokens of its retry budget"
        ):
            use(client.often, "x")
        with pytest.raises(rrpc.Unavailable) as raised:
            use(client.once, "x")  # which isn't retried with a full budget either
        assert "budget" not in str(raised.value)


def test_calls_that_a_dead_server_takes_along_go_on(fleet: Fleet, scheme: str) -> None:
    """More of them than the budget has tokens."""
    servers = fleet.members(2, scheme)
    servers[0].told("slow")
    addresses = [server.address for server in servers]
    with CountedClient(addresses, retry=RetryPolicy(max_attempts=4)) as client:
        futures = [client.often.start(f"key{i}", timeout=patience(60)) for i in range(64)]
        eventually(lambda: fleet.ran("key0", "server0"))
        servers[0].kill()
        assert {future.result() for future in futures} == {"server1"}


def test_many_retries_at_a_time(fleet: Fleet) -> None:
    """Thousands of futures that wait to be made again, and no thread for each."""
    (server,) = fleet.members(1, "shm")
    before = threading.active_count()
    with CountedClient(server.address, retry=POLICY) as client:
        futures = [client.moody.start(f"key{i}", 1, 14, timeout=patience(60)) for i in range(500)]
        assert threading.active_count() < before + 20
        assert {future.result() for future in futures} == {"server0"}
    assert len(fleet.runs()) == 1000


def test_a_cancelled_retry_ends(fleet: Fleet) -> None:
    (server,) = fleet.members(1, "shm")
    server.told("fail")
    policy = RetryPolicy(initial_backoff=60.0, max_backoff=60.0, jitter=0.0)
    with CountedClient(server.address, retry=policy) as client:
        future = client.often.start("x")
        eventually(lambda: fleet.runs() == ["x"])
        assert not future.done()
        assert future.cancel()
        eventually(future.done)
        assert future.cancelled()
        with pytest.raises(rrpc.Cancelled):
            future.result()


# Servers that die


def kill_at_random(fleet: Fleet, scheme: str, kills: int, seed: int) -> None:
    """Two servers, of which one is killed and started again, over and over, under calls of both kinds."""
    random = Random(seed)
    servers = fleet.members(2, scheme)
    policy = RetryPolicy(max_attempts=20, initial_backoff=0.005, max_backoff=0.05, budget=None)
    ending = threading.Event()
    answers: list[str] = []
    failed: dict[str, rrpc.RpcError] = {}
    often_failed: list[BaseException] = []
    addresses = [server.address for server in servers]
    with CountedClient(
        addresses, policy="round_robin", backoff=QUICK, retry=policy, timeout=patience(30)
    ) as client:

        def work(number: int) -> None:
            count = 0
            while not ending.is_set():
                count += 1
                keys = [f"once-{number}-{count}-{i}" for i in range(4)]
                started = {key: client.once.start(key) for key in keys[1:]}
                try:
                    client.once(keys[0])
                    answers.append(keys[0])
                except rrpc.Unavailable as error:
                    failed[keys[0]] = error
                for key, future in started.items():
                    why = future.exception()
                    if isinstance(why, rrpc.RpcError):
                        failed[key] = why
                    else:
                        answers.append(key)
                try:
                    client.often("often")
                except rrpc.RpcError as error:
                    often_failed.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(kills):
                time.sleep(random.uniform(0.0, 0.03))  # a random moment is what this is about
                random.choice(servers).restart()
        finally:
            ending.set()
            for thread in threads:
                thread.join(patience(60))
    runs = [key for key in fleet.runs() if key.startswith("once")]
    assert len(runs) == len(set(runs)), f"seed {seed}: a call ran twice"
    assert set(answers) <= set(runs)
    assert not {key for key, error in failed.items() if error.not_executed} & set(runs)
    assert set(runs) <= set(answers) | failed.keys()
    assert all(type(error) is rrpc.Unavailable for error in failed.values())
    assert not often_failed
    assert len(answers) > kills


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_kills_at_random_moments(fleet: Fleet, scheme: str, seed: int) -> None:
    """Two hundred in all."""
    kill_at_random(fleet, scheme, 50, seed)
