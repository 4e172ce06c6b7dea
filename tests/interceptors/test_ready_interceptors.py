"""Interceptors that come with rrpc: logging and tokens."""

import logging
import os
import pwd
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from processes import eventually
from styles import Shop, calling, serving

import rrpc
from rrpc.interceptors import ClientLogging, ClientToken, Retry, ServerLogging, ServerToken


def test_logging(shop_address: str, style: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rrpc.calls")
    with calling(style, shop_address, interceptors=[ClientLogging()]) as call:
        call("Shop.price", "apple")
        for arguments in (["none"], [3]):
            with pytest.raises(rrpc.RpcError):
                call("Shop.price", *arguments)
    records = [record for record in caplog.records if record.name == "rrpc.calls"]
    fields = [(r.levelname, r.rpc_side, r.rpc_code, bool(r.rpc_peer)) for r in records]  # type: ignore[attr-defined]
    assert fields == [
        ("INFO", "client", "OK", True),
        ("INFO", "client", "NOT_FOUND", True),
        ("WARNING", "client", "INVALID_ARGUMENT", True),
    ]
    assert records[1].rpc_error == "no such article"  # type: ignore[attr-defined]


@pytest.fixture
def guarded(shop: Shop, address: str) -> Iterator[tuple[str, set[str]]]:
    """A server that wants tokens, and those that it knows."""
    known = {"right"}
    check: Any = lambda token, call: token in known  # noqa: E731
    with rrpc.serve(shop, listen=address, interceptors=[ServerToken(check)]) as server:
        yield server.addresses[0], known


def test_a_token(guarded: tuple[str, set[str]], style: str, shop: Shop) -> None:
    shop_address, _ = guarded
    with calling(style, shop_address, interceptors=[ClientToken("right", allow_clear=True)]) as call:
        assert call("Shop.price", "apple") == 5
    for interceptors in ([ClientToken("wrong", allow_clear=True)], []):
        with (
            calling(style, shop_address, interceptors=interceptors) as call,
            pytest.raises(rrpc.Unauthenticated),
        ):
            call("Shop.price", "apple")
    assert shop.handled == ["apple"]


def test_a_token_is_renewed_when_it_is_refused(guarded: tuple[str, set[str]], style: str, shop: Shop) -> None:
    shop_address, known = guarded
    given: list[str] = []

    def get() -> str:
        given.append(f"token-{len(given)}")
        return given[-1]

    async def get_async() -> str:
        return get()

    known.add("token-1")
    token: Any = get_async if style == "asyncio" else get
    with calling(style, shop_address, interceptors=[ClientToken(token, allow_clear=True)]) as call:
        assert call("Shop.price", "apple") == 5  # token-0 is refused before any handler: again, with token-1
        assert call("Shop.price", "pear") == 4
        assert given == ["token-0", "token-1"]
        known.clear()
        with pytest.raises(rrpc.Unauthenticated):
            call("Shop.price", "plum")
        assert given == ["token-0", "token-1", "token-2"]
    assert shop.handled == ["apple", "pear"]


def test_a_token_that_a_stream_was_refused_for_is_renewed(address: str) -> None:
    @rrpc.service
    class Ticks:
        @rrpc.method
        def up_to(self, end: int) -> Iterator[int]:
            yield from range(end)

    given: list[str] = []

    def get() -> str:
        given.append(f"token-{len(given)}")
        return given[-1]

    guard = ServerToken("token-1")
    with (
        rrpc.serve(Ticks(), listen=address, interceptors=[guard]) as server,
        rrpc.connect(
            server.addresses[0], timeout=30.0, interceptors=[ClientToken(get, allow_clear=True)]
        ) as client,
    ):
        with pytest.raises(rrpc.Unauthenticated):
            list(rrpc.open_stream(client, "Ticks.up_to", 2))
        assert list(rrpc.open_stream(client, "Ticks.up_to", 2)) == [0, 1]
        assert list(rrpc.open_stream(client, "Ticks.up_to", 3)) == [0, 1, 2]
    assert given == ["token-0", "token-1"]


def test_a_token_has_an_age(guarded: tuple[str, set[str]]) -> None:
    shop_address, _ = guarded
    given: list[str] = []

    def get() -> str:
        given.append("right")
        return given[-1]

    with rrpc.connect(shop_address, interceptors=[ClientToken(get, max_age=0.0, allow_clear=True)]) as client:
        client.call("Shop.price", "a")
        client.call("Shop.price", "a")
    assert len(given) == 2


def test_what_a_handler_refused_isnt_called_again(style: str, address: str) -> None:
    @rrpc.service
    class Refusing:
        calls = 0

        @rrpc.method
        def plain(self) -> None:
            Refusing.calls += 1
            raise rrpc.Unauthenticated("by the handler")

    token = ClientToken(lambda: "x", allow_clear=True)
    with (
        rrpc.serve(Refusing(), listen=address) as server,
        calling(style, server.addresses[0], interceptors=[token]) as call,
        pytest.raises(rrpc.Unauthenticated),
    ):
        call("Refusing.plain")
    assert Refusing.calls == 1


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: ClientToken(3), TypeError, "token must be a str or a function that gets one, not int"),  # type: ignore[arg-type]
        (lambda: ClientToken("a\nb"), ValueError, "a token is a str without line breaks"),
    ],
)
def test_tokens_that_arent(make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


# Retries


class Watch(rrpc.ClientInterceptor):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def unary(self, call: Any) -> Any:
        try:
            result = yield call
        except rrpc.RpcError as error:
            self.seen.append(error.code.name)
            raise
        self.seen.append("OK")
        return result


class RefuseTwice(rrpc.ServerInterceptor):
    count = 0

    def unary(self, call: Any) -> Any:
        self.count += 1
        if self.count <= 2:
            raise rrpc.ResourceExhausted("later")
        return (yield call)


def test_retries(style: str, shop: Shop, address: str) -> None:
    """Outside of a retry one call is seen, inside each attempt. What no handler has seen may be made again."""
    outer, inner = Watch(), Watch()
    policy = rrpc.RetryPolicy(initial_backoff=0.001, codes=[rrpc.StatusCode.RESOURCE_EXHAUSTED])
    around = [outer, Retry(policy), inner]
    with (
        rrpc.serve(shop, listen=address, interceptors=[RefuseTwice()]) as server,
        calling(style, server.addresses[0], interceptors=around) as call,
    ):
        assert call("Shop.price", "apple") == 5
    assert outer.seen == ["OK"]
    assert inner.seen == ["RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED", "OK"]
    assert shop.handled == ["apple"]


def test_what_a_handler_has_seen_isnt_made_again(style: str, shop: Shop, shop_address: str) -> None:
    policy = rrpc.RetryPolicy(initial_backoff=0.001, codes=[rrpc.StatusCode.ABORTED])
    with calling(style, shop_address, interceptors=[Retry(policy)]) as call, pytest.raises(rrpc.Aborted):
        call("Shop.flaky", 3)
    assert shop.handled == ["flaky"]


def test_a_retry_has_a_policy() -> None:
    with pytest.raises(TypeError, match=r"policy must be a rrpc\.RetryPolicy, not int"):
        Retry(3)  # type: ignore[arg-type]


# At a server


def _noted(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "rrpc.calls"]


def test_logging_at_a_server(address: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rrpc.calls")
    with serving(address, ServerLogging(levels={rrpc.StatusCode.NOT_FOUND: logging.DEBUG})) as (_, client):
        client.call("Shop.price", "apple")
        wrong: list[Any] = ["broken", 3, "none"]
        for noted, argument in enumerate(wrong, 1):
            eventually(lambda: len(_noted(caplog)) == noted)  # noqa: B023  (the server notes a call once it has replied)
            with pytest.raises(rrpc.RpcError):
                client.call("Shop.price", argument)
        with pytest.raises(rrpc.Unimplemented):
            client.call("Shop.sell\nx")
        eventually(lambda: len(_noted(caplog)) == 4)
    records = _noted(caplog)
    fields = [(r.levelname, r.rpc_side, r.rpc_method, r.rpc_code) for r in records]  # type: ignore[attr-defined]
    assert fields == [
        ("INFO", "server", "Shop.price", "OK"),
        ("ERROR", "server", "Shop.price", "UNKNOWN"),
        ("WARNING", "server", "Shop.price", "INVALID_ARGUMENT"),
        ("WARNING", "server", r"Shop.sell\nx", "UNIMPLEMENTED"),
    ]
    assert records[0].rpc_peer  # type: ignore[attr-defined]
    assert records[0].rpc_duration_ms > 0  # type: ignore[attr-defined]
    assert records[1].rpc_error == "ValueError: broken"  # type: ignore[attr-defined]
    texts = [record.getMessage() for record in records]
    assert texts[0].startswith("server Shop.price: OK in ")
    assert texts[1].endswith("ValueError: broken")
    who = f"process:{pwd.getpwuid(os.getuid()).pw_name}" if address.startswith("shm") else ""
    assert [record.rpc_identity for record in records] == [who] * 4  # type: ignore[attr-defined]
    assert all(who in text for text in texts)
    assert not any("\n" in text for text in texts)


def bearer(token: str) -> dict[str, Any]:
    return {"authorization": f"Bearer {token}"}


@pytest.mark.parametrize("tokens", ["right", ["other", "right"], lambda token, call: token == "right"])
def test_tokens(address: str, tokens: Any) -> None:
    with serving(address, ServerToken(tokens)) as (service, client):
        assert client.call("Shop.price", "apple", metadata=bearer("right")) == 5
        assert client.call("Shop.price", "apple", metadata={"authorization": "bearer  right "}) == 5
        assert client.call("rrpc.Health.check", "")
        for metadata, text in (
            (None, "the call has no token"),
            (bearer("wrong"), "the token isn't one that this server knows"),
            (bearer("right\u00e9"), "the token isn't one"),
            (bearer(""), "isn't one"),
            ({"authorization": "Basic right"}, "must be Bearer TOKEN"),
            ({"authorization": ["Bearer right", "Bearer right"]}, "given once"),
            ({"authorization": b"Bearer right"}, "must be Bearer"),
        ):
            for method in ("Shop.price", "Shop.sell", "rrpc.Reflection.services"):
                with pytest.raises(rrpc.Unauthenticated, match=text) as raised:
                    client.call(method, metadata=metadata)
                assert raised.value.not_executed
        assert service.handled == ["apple", "apple"]


def test_a_check_may_say_who_it_is_or_deny(address: str) -> None:
    def check(token: str, call: Any) -> str:
        if token == "guest" and call.method == "Shop.double":
            raise rrpc.PermissionDenied("guests may only ask for prices")
        return token if token in ("guest", "owner") else ""

    with serving(address, ServerToken(check, exempt=["rrpc.Reflection"])) as (_, client):
        assert client.call("Shop.price", "apple", metadata=bearer("guest")) == 5
        with pytest.raises(rrpc.PermissionDenied, match="guests may only"):
            client.call("Shop.double", np.zeros(3), metadata=bearer("guest"))
        assert client.call("Shop.double", np.zeros(3), metadata=bearer("owner")).shape == (3,)
        with pytest.raises(rrpc.Unauthenticated):
            client.call("rrpc.Health.check", "")


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: ServerToken([]), ValueError, "give at least one"),
        (lambda: ServerToken("a\nb"), ValueError, "a token is a str without line breaks"),
        (lambda: ServerToken([""]), ValueError, "not an empty one"),
        (lambda: ServerToken("x", exempt="rrpc.Health"), TypeError, "exempt is a list of names"),
    ],
)
def test_tokens_that_servers_refuse(make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()
