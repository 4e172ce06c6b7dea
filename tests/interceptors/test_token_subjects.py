"""Tokens that name callers, and those that aren't sent in clear."""

import asyncio
import logging
import os
import pwd
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import eventually

import rrpc
from rrpc.interceptors import ClientToken, ServerLogging, ServerToken
from rrpc.std import HealthClient

ME = pwd.getpwuid(os.getuid()).pw_name


def check(token: str, call: Any) -> str | None:
    return {"t-batch": "batch", "t-web": "web"}.get(token)


def services(seen: list[str]) -> tuple[Any, Any]:
    @rrpc.service
    class Plain:
        @rrpc.method(allow=["token:batch"])
        def batch(self) -> str:
            seen.append(rrpc.context().peer.token)
            return rrpc.context().peer.identity

        @rrpc.method(allow=["token:batch", "same-user"])
        def either(self) -> str:
            return rrpc.context().peer.token

        @rrpc.method(allow=["token:batch"])
        def drip(self) -> Iterator[str]:
            seen.append("drip")
            yield rrpc.context().peer.token

    @rrpc.service(name="Plain")
    class Async:
        @rrpc.method(allow=["token:batch"])
        async def batch(self) -> str:
            seen.append(rrpc.context().peer.token)
            return rrpc.context().peer.identity

        @rrpc.method(allow=["token:batch", "same-user"])
        async def either(self) -> str:
            return rrpc.context().peer.token

        @rrpc.method(allow=["token:batch"])
        async def drip(self) -> AsyncIterator[str]:
            seen.append("drip")
            yield rrpc.context().peer.token

    return Plain(), Async()


@pytest.mark.parametrize("in_loop", [False, True])
def test_subjects_of_tokens(short_tmp: Path, in_loop: bool) -> None:
    seen: list[str] = []
    service = services(seen)[in_loop]
    guard = ServerToken(check)
    with rrpc.serve(service, listen=f"shm://{short_tmp}/t.sock", interceptors=[guard]) as server:
        place = server.addresses[0]
        with rrpc.connect(place, interceptors=[ClientToken("t-batch")], timeout=20.0) as client:
            assert client.call("Plain.batch") == f"process:{ME},token:batch"
            assert client.call("Plain.either") == "batch"
            with rrpc.open_stream(client, "Plain.drip") as stream:
                assert list(stream) == ["batch"]
            server.authorize(rrpc.Authorization({"Plain": ["token:web"]}))
            with pytest.raises(rrpc.PermissionDenied, match="with the token of 'batch'"):
                client.call("Plain.either")
            server.authorize(None)
        assert seen == ["batch", "drip"]
        with rrpc.connect(place, interceptors=[ClientToken("t-web")], timeout=20.0) as client:
            with pytest.raises(
                rrpc.PermissionDenied, match=r"Plain.batch\(\) may not .* with the token of 'web'"
            ):
                client.call("Plain.batch")
            with (
                pytest.raises(rrpc.PermissionDenied, match="with the token of 'web'"),
                rrpc.open_stream(client, "Plain.drip") as stream,
            ):
                list(stream)
            assert client.call("Plain.either") == "web"
    assert seen == ["batch", "drip"]


def test_the_call_log_names_the_token(short_tmp: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rrpc.calls")
    around = [ServerLogging(), ServerToken(check)]
    with (
        rrpc.serve(services([])[0], listen=f"shm://{short_tmp}/t.sock", interceptors=around) as server,
        rrpc.connect(server.addresses[0], interceptors=[ClientToken("t-web")], timeout=20.0) as client,
    ):
        client.call("Plain.either")
        eventually(lambda: caplog.records)
        with pytest.raises(rrpc.PermissionDenied):
            client.call("Plain.batch")
        eventually(lambda: len(caplog.records) == 2)
    found = [(r.rpc_code, r.rpc_identity) for r in caplog.records]  # type: ignore[attr-defined]
    who = f"process:{ME},token:web"
    assert found == [("OK", who), ("PERMISSION_DENIED", who)]


class Note(rrpc.ServerInterceptor):
    def __init__(self) -> None:
        self.received: list[Any] = []

    def unary(self, call: Any) -> Any:
        self.received.append(call.metadata.get("authorization"))
        return (yield call)

    stream = unary


@rrpc.service
class Echo:
    @rrpc.method
    def one(self) -> int:
        return 1

    @rrpc.method
    def some(self) -> Iterator[int]:
        yield 1


def attempt(place: str, method: str = "", **how: Any) -> None:
    """A call without streams, one with, or both."""
    options = {name: how.pop(name) for name in ("retry", "hedging") if name in how}
    with rrpc.connect(place, interceptors=[ClientToken("secret", **how)], timeout=20.0, **options) as client:
        if method != "some":
            assert client.call("Echo.one") == 1
        if method != "one":
            with rrpc.open_stream(client, "Echo.some") as stream:
                assert list(stream) == [1]


def test_tokens_are_sent_where_nobody_can_read_them(short_tmp: Path) -> None:
    note = Note()
    with rrpc.serve(Echo(), listen=f"shm://{short_tmp}/e.sock", interceptors=[note]) as server:
        attempt(server.addresses[0])
    assert note.received == ["Bearer secret"] * 2


def test_tokens_are_not_sent_in_clear() -> None:
    note = Note()
    with rrpc.serve(Echo(), listen="tcp://127.0.0.1:0", interceptors=[note]) as server:
        place = server.addresses[0]
        retry, hedging = rrpc.RetryPolicy(max_attempts=2), rrpc.HedgingPolicy(delay=0.01)
        for more in ({}, {"retry": retry}, {"hedging": hedging}):
            with pytest.raises(
                rrpc.FailedPrecondition, match=r"Echo.one\(\): the call wasn't sent, since tcp://"
            ) as caught:
                attempt(place, "one", **more)
            assert caught.value.not_executed
            assert "allow_clear=True" in str(caught.value)
        with pytest.raises(rrpc.FailedPrecondition, match=r"Echo.some\(\): the call wasn't sent"):
            attempt(place, "some")

        async def in_loop(method: str) -> None:
            async with rrpc.aio.Client(place, interceptors=[ClientToken("secret")], timeout=20.0) as client:
                if method == "one":
                    await client.call("Echo.one")
                else:
                    async with rrpc.aio.open_stream(client, "Echo.some") as stream:
                        await anext(stream)

        for method in ("one", "some"):
            with pytest.raises(rrpc.FailedPrecondition, match=rf"Echo.{method}\(\): the call wasn't sent"):
                asyncio.run(in_loop(method))
        # An idempotent method, which is hedged.
        with (
            HealthClient(
                place, interceptors=[ClientToken("secret")], timeout=20.0, hedging=hedging
            ) as health,
            pytest.raises(rrpc.FailedPrecondition, match="the call wasn't sent"),
        ):
            health.check("")
        assert note.received == []
        attempt(place, allow_clear=True)
    assert note.received == ["Bearer secret"] * 2


def test_privacy() -> None:
    from rrpc.interceptors import is_private

    for security in ("same host", "TLSv1.3 TLS_AES_256_GCM_SHA384", "encrypt"):
        assert is_private({"security": security})
    for security in ("none", "identity", "sign"):
        assert not is_private({"security": security})
    assert not is_private({})
