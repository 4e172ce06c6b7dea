"""Calls between two processes, on every transport."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from lab import LAB, TRANSPORTS, LabServer, still_answers
from processes import ServeFactory, eventually, patience, volume

import rrpc

VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1 << 63,
    1 << 200,
    1.5,
    float("inf"),
    2 + 3j,
    "",
    "gruß 😀",
    b"",
    b"\0\xff",
    bytearray(b"abc"),
    [],
    (),
    {},
    [1, (2, [3, {"a": (None,)}])],
    {"a": 1, 2: "b", (1, 2): [b"x"]},
    {1, 2, 3},
    frozenset({"a"}),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_come_back(lab: rrpc.Client, value: Any) -> None:
    back = lab.call("Lab.echo", value)
    assert back == value
    assert type(back) is type(value)


def test_arguments_by_position_name_and_default(lab: rrpc.Client) -> None:
    assert lab.call("Lab.add", 1, 2) == 3
    assert lab.call("Lab.add", 1) == 2
    assert lab.call("Lab.add", b=5, a=1) == 6
    assert lab.call("Lab.nothing") is None


def test_several_services_in_one_server(lab: rrpc.Client) -> None:
    assert lab.call("Second.twice", 21) == 42
    assert lab.call("Lab.add", 1) == 2


def test_transport_is_what_the_address_asks_for(lab: rrpc.Client) -> None:
    info = lab.info()
    assert info["state"] == "connected"
    scheme = lab.address.split("://")[0]
    assert info["transport"] == {"rrpc": "shm"}.get(scheme, scheme)
    assert info["why_not"] == {}


@pytest.mark.parametrize("slot_bytes", [512, 8192])
def test_messages_around_the_size_of_a_slot(lab_address: str, slot_bytes: int) -> None:
    # Strings are never lifted: around the slot's size the message moves from SEND to bulk.
    with rrpc.connect(lab_address, slot_bytes=slot_bytes, timeout=30.0) as client:
        for size in (0, 1, *range(slot_bytes - 110, slot_bytes + 10), 65536):
            text = "x" * size
            assert client.call("Lab.echo", text) == text


@pytest.mark.parametrize("poll", ["adaptive", "busy", "event"])
def test_ways_of_polling(lab_address: str, poll: str) -> None:
    with rrpc.connect(lab_address, poll=poll, timeout=30.0) as client:
        assert [client.call("Lab.add", i) for i in range(50)] == list(range(1, 51))


def test_a_ring_of_the_least_size(lab_address: str) -> None:
    with rrpc.connect(lab_address, slots=16, slot_bytes=512, timeout=30.0) as client:
        futures = [client.start("Lab.add", i) for i in range(500)]
        assert [f.result() for f in futures] == list(range(1, 501))


# Futures


def test_thousands_of_futures_in_any_order(lab: rrpc.Client) -> None:
    count = volume(5000, 1000)
    futures = [lab.start("Lab.add", i, 0) for i in range(count)]
    odd = [f.result() for f in reversed(futures[1::2])]
    even = [f.result() for f in futures[::2]]
    assert odd == list(range(count - 1, 0, -2))
    assert even == list(range(0, count, 2))
    assert all(f.done() and not f.running() and not f.cancelled() for f in futures)


def test_a_future_is_not_done_before_its_call(lab: rrpc.Client, request: pytest.FixtureRequest) -> None:
    name = request.node.name
    future = lab.start("Lab.hold", name)
    assert not future.done()
    assert future.running()
    with pytest.raises(TimeoutError) as raised:
        future.result(timeout=0.01)
    assert not isinstance(raised.value, rrpc.RpcError)
    with pytest.raises(TimeoutError):
        future.exception(timeout=0)
    lab.call("Lab.release", name)
    assert future.result(timeout=patience(20)) is True
    assert future.exception() is None
    assert future.result() is True


def test_done_callbacks(lab: rrpc.Client, request: pytest.FixtureRequest) -> None:
    name = request.node.name
    future = lab.start("Lab.hold", name)
    seen: list[tuple[str, bool]] = []
    for label in "ab":
        future.add_done_callback(lambda f, label=label: seen.append((label, f.done())))  # type: ignore[misc]
    assert seen == []
    lab.call("Lab.release", name)
    eventually(lambda: len(seen) == 2)  # nobody waits for the future
    future.add_done_callback(lambda f: seen.append(("late", f.result())))
    eventually(lambda: len(seen) == 3)
    assert sorted(seen) == [("a", True), ("b", True), ("late", True)]


def test_a_callback_that_raises_is_logged(lab: rrpc.Client, caplog: pytest.LogCaptureFixture) -> None:
    future = lab.start("Lab.add", 1)
    future.add_done_callback(lambda f: 1 / 0)
    assert future.result() == 2
    eventually(lambda: "a done callback raised" in caplog.text)


def test_a_callback_may_call(lab: rrpc.Client) -> None:
    answers: list[int] = []
    future = lab.start("Lab.add", 1)
    future.add_done_callback(lambda f: answers.append(lab.call("Lab.add", f.result())))
    eventually(lambda: answers == [3])


def test_cancel(lab: rrpc.Client, request: pytest.FixtureRequest) -> None:
    name = request.node.name
    future = lab.start("Lab.hold", name)
    eventually(lambda: lab.call("Lab.holding", name))
    assert future.cancel()
    assert future.cancelled()
    assert future.done()
    assert not future.cancel()
    with pytest.raises(rrpc.Cancelled):
        future.result()
    lab.call("Lab.release", name)
    assert lab.call("Lab.add", 1) == 2
    done = lab.start("Lab.add", 1)
    done.result()
    assert not done.cancel()
    assert not done.cancelled()


# Many at a time


def test_threads_share_a_client(lab: rrpc.Client) -> None:
    calls = volume(200, 40)

    def work(base: int) -> list[int]:
        return [lab.call("Lab.add", base, i) for i in range(calls)]

    with ThreadPoolExecutor(8) as pool:
        for base, got in enumerate(pool.map(work, range(8))):
            assert got == [base + i for i in range(calls)]


def test_threads_wait_while_one_is_held(lab: rrpc.Client, request: pytest.FixtureRequest) -> None:
    """The sleeping leader of a connection doesn't keep others' replies from them."""
    name = request.node.name
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(lab.call("Lab.hold", name)))
    thread.start()
    eventually(lambda: lab.call("Lab.holding", name))
    assert [lab.call("Lab.add", i) for i in range(100)] == list(range(1, 101))
    lab.call("Lab.release", name)
    thread.join(patience(20))
    assert answers == [True]


def test_many_clients(lab_address: str) -> None:
    clients = [rrpc.connect(lab_address, timeout=30.0) for _ in range(20)]
    futures = [client.start("Lab.add", i, j) for j in range(20) for i, client in enumerate(clients)]
    assert [f.result() for f in futures] == [i + j for j in range(20) for i in range(20)]
    for client in clients[::2]:
        client.close()
    assert [client.call("Lab.add", 1) for client in clients[1::2]] == [2] * 10
    for client in clients:
        client.close()


def test_clients_in_threads(lab_address: str) -> None:
    calls = volume(50, 10)

    def work(base: int) -> int:
        with rrpc.connect(lab_address, timeout=30.0) as client:
            return sum(client.call("Lab.add", base, i) for i in range(calls))

    with ThreadPoolExecutor(8) as pool:
        expected = [sum(base + i for i in range(calls)) for base in range(16)]
        assert list(pool.map(work, range(16))) == expected


# What goes wrong in a handler


@pytest.mark.parametrize(
    ("kind", "type_name", "shown"),
    [
        ("value", "ValueError", "bad ☠"),
        ("zero", "ZeroDivisionError", "bad ☠"),
        ("key", "KeyError", "'bad ☠'"),
    ],
)
def test_an_exception_reaches_the_caller(lab: rrpc.Client, kind: str, type_name: str, shown: str) -> None:
    with pytest.raises(rrpc.RemoteError) as raised:
        lab.call("Lab.fail", kind, "bad ☠")
    assert raised.value.type_name == type_name
    assert raised.value.message == shown
    assert raised.value.code is rrpc.StatusCode.UNKNOWN
    assert not raised.value.remote_traceback
    assert lab.call("Lab.add", 1) == 2


def test_exceptions_of_other_kinds(lab: rrpc.Client) -> None:
    with pytest.raises(rrpc.RemoteError) as raised:
        lab.call("Lab.fail", "odd", "x")
    assert raised.value.type_name == "lab_service.OddError"
    with pytest.raises(rrpc.NotFound, match="no such row"):
        lab.call("Lab.fail", "rpc", "no such row")
    with pytest.raises(rrpc.Internal, match="SystemExit"):
        lab.call("Lab.fail", "exit", "")
    with pytest.raises(rrpc.RemoteError) as raised:
        lab.call("Lab.fail", "value", "m" * 300_000)
    assert raised.value.message.startswith("m" * 16_000)
    assert len(raised.value.message) < 20_000


def test_tracebacks_when_the_server_allows(serve: ServeFactory, transport: str) -> None:
    served = serve(LAB, "Lab", listen=transport, args=["--tracebacks"], module="lab_service")
    with rrpc.connect(served.address, timeout=30.0) as client:
        with pytest.raises(rrpc.RemoteError) as raised:
            client.call("Lab.fail", "value", "bad")
        there = raised.value.remote_traceback
        assert there is not None
        assert "lab_service.py" in there
        assert "in fail" in there
        assert "ValueError: bad" in there
        assert "rrpc/_server/server.py" not in there


def test_results_that_cannot_be_sent(lab: rrpc.Client) -> None:
    with pytest.raises(rrpc.RpcError, match=r"Lab\.unencodable.*object"):
        lab.call("Lab.unencodable")
    with pytest.raises(rrpc.RpcError, match=r"Lab\.wrong_result.*int"):
        lab.call("Lab.wrong_result")
    assert lab.call("Lab.add", 1) == 2


def test_arguments_that_cannot_be_sent(lab: rrpc.Client) -> None:
    with pytest.raises(rrpc.InvalidArgument, match="object"):
        lab.call("Lab.echo", object())
    with pytest.raises(rrpc.InvalidArgument, match="argument"):
        lab.start("Lab.echo", value=[1, {2: lambda: 0}])
    assert lab.call("Lab.add", 1) == 2


def test_wrong_calls(lab: rrpc.Client) -> None:
    for name, said in [
        ("Lab.nope", "has no method 'nope'"),
        ("Nope.add", "no service 'Nope'"),
        ("", "names no service"),
        ("Lab.add\0", "has no method"),
        ("Lab." + "x" * 9000, "has no method"),
    ]:
        with pytest.raises(rrpc.Unimplemented, match=said):
            lab.call(name)
    with pytest.raises(rrpc.InvalidArgument, match="method name"):
        lab.call("x" * 70_000)
    for args, kwargs in [((), {}), ((1, 2, 3), {}), ((1,), {"c": 2}), (("a",), {}), ((1.5,), {})]:
        with pytest.raises(rrpc.InvalidArgument, match=r"Lab\.add"):
            lab.call("Lab.add", *args, **kwargs)  # type: ignore[arg-type]
    assert lab.call("Lab.add", 1) == 2


# The end of a client


def test_close_ends_calls_in_flight(lab_server: LabServer, lab_address: str, request: Any) -> None:
    name = request.node.name
    client = rrpc.connect(lab_address)
    futures = [client.start("Lab.hold", name) for _ in range(3)]
    client.close()
    client.close()
    for future in futures:
        with pytest.raises(rrpc.Unavailable, match="closed"):
            future.result(timeout=patience(10))
    with pytest.raises(rrpc.Unavailable, match="closed"):
        client.call("Lab.add", 1)
    with pytest.raises(rrpc.Unavailable, match="closed"):
        client.start("Lab.add", 1)
    with rrpc.connect(lab_address) as other:
        other.call("Lab.release", name)
    still_answers(lab_address)


def test_close_wakes_a_waiting_thread(lab_address: str, request: pytest.FixtureRequest) -> None:
    name = request.node.name
    client = rrpc.connect(lab_address)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            client.call("Lab.hold", name)
        except rrpc.RpcError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    with rrpc.connect(lab_address) as other:
        eventually(lambda: other.call("Lab.holding", name))
        client.close()
        thread.join(patience(10))
        other.call("Lab.release", name)
    assert isinstance(errors[0], rrpc.Unavailable)


def test_results_outlive_the_client(lab_address: str) -> None:
    client = rrpc.connect(lab_address)
    future = client.start("Lab.add", 1)
    assert future.result() == 2
    client.close()
    assert future.result() == 2


def test_all_transports_are_tested() -> None:
    """But those of adapters, which a machine may lack."""
    reasons = rrpc.transports()
    assert set(TRANSPORTS) == {"rrpc"} | {scheme for scheme in reasons if not scheme.startswith("verbs")}
    assert [scheme for scheme, why_not in reasons.items() if why_not] in ([], ["verbs", "verbs+tcp"])
