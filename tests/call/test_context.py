"""What a handler knows of its call."""

from collections.abc import Iterator

import pytest
from lab import TRANSPORTS, LabServer, address_to_listen_on, core_of
from processes import HELPERS, ServeFactory, patience

import rrpc
from rrpc.metadata import MetadataLike

SERVICE = (HELPERS / "context_service.py").read_text()


@pytest.fixture(scope="module")
def seen_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    folder = tmp_path_factory.mktemp("seen")
    factory = ServeFactory(folder, address_to_listen_on)
    yield LabServer(factory(SERVICE, "Seen", listen=TRANSPORTS, module="context_service"))
    factory.close()


@pytest.fixture
def seen(seen_server: LabServer, transport: str) -> Iterator[rrpc.Client]:
    with rrpc.connect(seen_server.address(transport), timeout=patience(30)) as client:
        yield client


def test_a_call(seen: rrpc.Client) -> None:
    about = seen.call("Seen.about", timeout=50)
    assert about["method"] == "Seen.about"
    assert about["peer"]
    assert about["has_deadline"]
    assert 0 < about["time_left"] <= 50
    assert not about["cancelled"]
    assert not about["ended"]


def test_a_call_without_a_deadline(seen: rrpc.Client) -> None:
    with rrpc.connect(seen.address) as client:
        about = client.call("Seen.about")
    assert about["time_left"] is None
    assert not about["has_deadline"]


def test_outside_of_handlers(seen: rrpc.Client) -> None:
    with pytest.raises(RuntimeError, match=r"rrpc\.context\(\) is for handlers"):
        rrpc.context()
    (message,) = seen.call("Seen.outside")
    assert "a thread that a handler starts needs it passed on" in message
    assert seen.call("Seen.still_there_when_detached") is True
    with rrpc.detached(), pytest.raises(RuntimeError, match="is for handlers"):
        rrpc.context()


def test_callbacks_of_futures_belong_to_no_handler(seen: rrpc.Client) -> None:
    assert seen.call("Seen.in_callbacks", seen.address) == ["no context"] * 20


def test_a_worker_has_no_context_between_its_calls(transport: str, address: str) -> None:
    contexts: list[rrpc.Context] = []

    @rrpc.service
    class Kept:
        @rrpc.method
        def keep(self) -> None:
            contexts.append(rrpc.context())

    with rrpc.serve(Kept(), listen=address) as server, rrpc.connect(server.addresses[0]) as client:
        client.call("Kept.keep", timeout=patience(30))
    (context,) = contexts
    assert context.ended
    assert context.cancelled
    assert context.peer == ""
    assert context.wait_cancelled() is True
    assert context.method == "Kept.keep"
    context.add_cancel_callback(lambda: pytest.fail("it was answered"))


def test_the_caller_cancels(seen: rrpc.Client, request: pytest.FixtureRequest) -> None:
    name = request.node.name
    future = seen.start("Seen.hold", name)
    assert seen.call("Seen.began", name)
    assert future.cancel()
    assert seen.call("Seen.seen", name) == {
        "before": (False, False),
        "told": True,
        "cancelled": True,
        "called": ["callback"],
        "late": True,
    }


def test_the_deadline_passes(seen: rrpc.Client, request: pytest.FixtureRequest) -> None:
    name = request.node.name
    with pytest.raises(rrpc.DeadlineExceeded):
        seen.call("Seen.hold", name, timeout=1.0)  # it begins before
    assert seen.call("Seen.seen", name)["told"] is True


def test_the_caller_goes(seen: rrpc.Client, request: pytest.FixtureRequest) -> None:
    name = request.node.name
    with rrpc.connect(seen.address) as other:
        other.start("Seen.hold", name)
        assert seen.call("Seen.began", name)
    assert seen.call("Seen.seen", name)["called"] == ["callback"]


def test_metadata_both_ways(seen: rrpc.Client) -> None:
    sent: MetadataLike = {"trace-id": "7", "key": b"\0\xff", "tag": ["a", b"b"]}
    future = seen.start("Seen.metadata", metadata=sent)
    assert future.result() == {"trace-id": ["7"], "key": [b"\0\xff"], "tag": ["a", b"b"]}
    assert future.metadata() == {**sent, "last": "tag"}
    assert seen.call("Seen.metadata", metadata={"a": "b"}) == {"a": ["b"]}


def test_what_can_t_be_metadata_is_told_before_anything_is_sent(seen: rrpc.Client) -> None:
    with pytest.raises(rrpc.InvalidArgument, match="'Trace-Id' can't be a name"):
        seen.call("Seen.metadata", metadata={"Trace-Id": "7"})
    with pytest.raises(rrpc.ResourceExhausted, match="metadata_bytes_max: the request has") as caught:
        seen.call("Seen.metadata", metadata={"long": "x" * 9000})
    assert caught.value.not_executed


def test_an_error_has_metadata_and_details(seen: rrpc.Client) -> None:
    with pytest.raises(rrpc.NotFound, match="no such row") as caught:
        seen.call("Seen.fail_with", {"retry-in": "5"})
    assert caught.value.metadata == {"retry-in": "5"}
    assert caught.value.details == {"row": 7, "where": ("a", 1)}
    assert not caught.value.not_executed
    with pytest.raises(rrpc.InvalidArgument, match="'Retry' can't be a name"):
        seen.call("Seen.fail_with", {"Retry": "5"})


def test_malformed_metadata_is_refused_where_it_is_looked_at(seen: rrpc.Client) -> None:
    for payload in (b"\xc1", b"\x81\xa1A\xa1b"):
        with pytest.raises(rrpc.ProtocolError, match="malformed metadata"):
            core_of(seen).call(b"Seen.metadata", b"\x90", None, None, 30.0, payload)
    assert seen.call("Seen.metadata") == {}


def test_too_much_metadata_in_a_reply(seen: rrpc.Client) -> None:
    with pytest.raises(rrpc.ResourceExhausted, match="metadata_bytes_max"):
        seen.call("Seen.fail_with", {"long": "x" * 9000})
    assert seen.call("Seen.metadata") == {}
