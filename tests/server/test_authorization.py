"""Who may call what: ``allow`` in the code, ``rrpc.Authorization``, and the caller as handlers see it."""

import asyncio
import gc
import grp
import logging
import os
import pwd
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from processes import eventually
from two_versions import connect_as

import rrpc

ME = pwd.getpwuid(os.getuid()).pw_name
MY_GROUP = grp.getgrgid(os.getgid()).gr_name
LARGE = 4 << 20


@rrpc.service(allow=["same-user"])
class Vault:
    def __init__(self) -> None:
        self.handled: list[str] = []

    @rrpc.method
    def open(self) -> str:
        self.handled.append("open")
        return rrpc.context().peer

    @rrpc.method(allow=["any"])
    def knock(self) -> str:
        return rrpc.context().peer.kind

    @rrpc.method(allow=[])
    def burn(self, array: NDArray[np.uint8]) -> int:
        self.handled.append("burn")
        return int(array[0])

    @rrpc.method(allow=[])
    def drip(self, items: Iterator[int]) -> Iterator[int]:
        self.handled.append("drip")
        yield from items

    @rrpc.method(allow=[])
    @rrpc.batched(max_batch=4)
    def many(self, numbers: list[int]) -> list[int]:
        self.handled.append("many")
        return numbers


@rrpc.service(allow=[])
class AsyncVault:
    def __init__(self) -> None:
        self.handled: list[str] = []

    @rrpc.method(allow=["any"])
    async def knock(self) -> str:
        return rrpc.context().peer.kind

    @rrpc.method
    async def open(self, array: NDArray[np.uint8]) -> int:
        self.handled.append("open")
        return int(array[0])

    @rrpc.method
    async def drip(self, count: int) -> AsyncIterator[int]:
        self.handled.append("drip")
        yield count


def denied(client: Any, method: str, *arguments: Any) -> str:
    with pytest.raises(rrpc.PermissionDenied) as caught:
        client.call(method, *arguments, timeout=20.0)
    assert caught.value.not_executed
    return str(caught.value)


@pytest.fixture
def vault() -> Vault:
    return Vault()


def test_allow_of_methods_and_services(vault: Vault, address: str) -> None:
    local = address.startswith("shm")
    with rrpc.serve(vault, listen=address) as server, rrpc.connect(server.addresses[0]) as client:
        assert client.call("Vault.knock") == ("process" if local else "anonymous")
        if local:
            assert client.call("Vault.open") == client.call("Vault.open")
        else:
            assert "anonymous caller" in denied(client, "Vault.open")
        before = rrpc.stats()
        who = f"user {ME} (uid {os.getuid()})" if local else "an anonymous caller"
        text = denied(client, "Vault.burn", np.zeros(LARGE, np.uint8))
        assert text.startswith(f"Vault.burn() may not be called by {who}")
        denied(client, "Vault.many", [3])
        with (
            pytest.raises(rrpc.PermissionDenied),
            rrpc.open_stream(client, "Vault.drip", sends=True) as stream,
        ):
            next(stream)
        after = rrpc.stats()
        assert after["calls_denied"] - before["calls_denied"] == 3
        assert after["bytes_read"] == before["bytes_read"], (
            "the arguments of a refused call stay where they are"
        )
        assert "burn" not in vault.handled
        assert "many" not in vault.handled
        assert "drip" not in vault.handled
        with pytest.raises(rrpc.Unimplemented, match="has no method 'nothing'; it has open, knock"):
            client.call("Vault.nothing")


def test_allow_in_an_event_loop(address: str) -> None:
    vault = AsyncVault()

    async def run() -> None:
        async with (
            rrpc.aio.serve(vault, listen=address) as server,
            rrpc.aio.Client(server.addresses[0], timeout=20.0) as client,
        ):
            assert await client.call("AsyncVault.knock") in ("process", "anonymous")
            with pytest.raises(rrpc.PermissionDenied):
                await client.call("AsyncVault.open", np.zeros(LARGE, np.uint8))
            with pytest.raises(rrpc.PermissionDenied):
                async with rrpc.aio.open_stream(client, "AsyncVault.drip", 3) as stream:
                    await anext(stream)
            server.authorize(rrpc.Authorization({"AsyncVault.open": ["any"]}))
            with pytest.raises(rrpc.PermissionDenied):
                await client.call("AsyncVault.knock")

    asyncio.run(run())
    assert vault.handled == []


class Loud(rrpc.ServerInterceptor):
    def unary(self, call: Any) -> Any:
        return (yield call)


@pytest.mark.parametrize("interceptors", [[], [Loud()]])
@pytest.mark.parametrize("observed", [False, True])
def test_nothing_of_a_refused_call_comes_to_python(
    vault: Vault, address: str, interceptors: list[Any], observed: bool
) -> None:
    calls: list[rrpc.observe.ServedCall] = []
    observer = calls.append if observed else None
    with (
        rrpc.serve(vault, listen=address, interceptors=interceptors, observer=observer) as server,
        rrpc.connect(server.addresses[0]) as client,
    ):
        denied(client, "Vault.burn", np.zeros(3, np.uint8))
        client.call("Vault.knock")
        server.authorize(rrpc.Authorization({"*": []}))
        denied(client, "Vault.knock")
        denied(client, "rrpc.Health.check", "")
        server.authorize(None)
        client.call("Vault.knock")
        if observed:
            eventually(lambda: len(calls) == 2)
            assert {call.method for call in calls} == {"Vault.knock"}


def test_rules_deny_by_default(vault: Vault, address: str) -> None:
    rules = rrpc.Authorization({"Vault.knock": ["any"]})
    with (
        rrpc.serve(vault, listen=address, authorization=rules) as server,
        rrpc.connect(server.addresses[0]) as client,
    ):
        client.call("Vault.knock")
        for method in (
            "Vault.open",
            "rrpc.Health.check",
            "rrpc.Reflection.services",
            "No.thing",
            "Vault.no",
            "x",
        ):
            assert denied(client, method).startswith(f"{method}() may not be called by ")
        server.authorize(rrpc.Authorization({"Vault": ["any"], "rrpc.Health": ["any"]}))
        assert client.call("rrpc.Health.check", "") == 1
        denied(client, "rrpc.Reflection.services")
        # The code's own lists hold beside the rules.
        denied(client, "Vault.burn", np.zeros(3, np.uint8))


def test_long_requests_of_those_who_may_call_nothing_are_not_fetched(vault: Vault, address: str) -> None:
    with rrpc.serve(vault, listen=address) as server, rrpc.connect(server.addresses[0]) as client:
        server.authorize(rrpc.Authorization({"*": []}))
        before = rrpc.stats()["bytes_read"]
        text = denied(client, "Vault.knock", "x" * (1 << 20))
        assert text.startswith("nothing here may be called by ")
        assert rrpc.stats()["bytes_read"] == before


def test_subclasses_keep_or_change_what_is_allowed(address: str) -> None:
    class Quiet(Vault):
        def open(self) -> str:
            return "quiet"

        @rrpc.method(allow=["any"])
        def burn(self, array: NDArray[np.uint8]) -> int:
            return 7

    @rrpc.service(name="Shut", allow=[])
    class Shut(Vault):
        pass

    with rrpc.serve(Quiet(), Shut(), listen=address) as server, rrpc.connect(server.addresses[0]) as client:
        assert client.call("Vault.burn", np.zeros(3, np.uint8)) == 7
        denied(client, "Vault.drip")
        denied(client, "Shut.open")
        assert client.call("Shut.knock")


def test_a_running_stream_goes_on_and_the_next_call_is_refused(address: str) -> None:
    @rrpc.service
    class Counter:
        @rrpc.method
        def echo(self, items: Iterator[int]) -> Iterator[int]:
            yield from items

    with rrpc.serve(Counter(), listen=address) as server, rrpc.connect(server.addresses[0]) as client:
        with rrpc.open_stream(client, "Counter.echo", sends=True) as stream:
            stream.send(1)
            assert next(stream) == 1
            server.authorize(rrpc.Authorization({"Counter": []}))
            stream.send(2)
            assert next(stream) == 2
        with (
            pytest.raises(rrpc.PermissionDenied),
            rrpc.open_stream(client, "Counter.echo", sends=True) as stream,
        ):
            next(stream)


def test_policies_change_under_load(vault: Vault, address: str) -> None:
    """Each call is answered, by a result or by PermissionDenied, and the last policy is the one that holds."""
    stop = threading.Event()
    counts = {"ok": 0, "denied": 0}
    others: list[BaseException] = []

    def call(client: rrpc.Client) -> None:
        while not stop.is_set():
            try:
                client.call("Vault.knock", timeout=20.0)
                counts["ok"] += 1
            except rrpc.PermissionDenied:  # noqa: PERF203
                counts["denied"] += 1
            except BaseException as error:
                others.append(error)
                return

    with rrpc.serve(vault, listen=address) as server, rrpc.connect(server.addresses[0]) as client:
        threads = [threading.Thread(target=call, args=(client,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        open_to_all, shut = (rrpc.Authorization({"Vault": allow}) for allow in (["any"], []))
        for _ in range(200):
            server.authorize(shut)
            server.authorize(open_to_all)
        server.authorize(shut)
        eventually(lambda: counts["denied"] > 0)
        server.authorize(open_to_all)
        assert client.call("Vault.knock")
        done = counts["ok"]
        eventually(lambda: counts["ok"] > done)
        stop.set()
        for thread in threads:
            thread.join()
    assert not others


def test_refusals_are_logged_once(vault: Vault, address: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "rrpc.authorization")
    with rrpc.serve(vault, listen=address) as server, rrpc.connect(server.addresses[0]) as client:
        for _ in range(3):
            denied(client, "Vault.burn", np.zeros(3, np.uint8))
        eventually(lambda: caplog.messages)
        denied(client, "Vault.drip")
        eventually(lambda: len(caplog.messages) == 2)
        assert caplog.messages[0].startswith("denied: Vault.burn() may not be called by ")
        assert caplog.messages[1].startswith("denied: Vault.drip() may not be called by ")


def test_a_server_that_nobody_uses_goes() -> None:
    """What logs refusals doesn't hold its server."""
    import weakref

    server = rrpc.Server(Vault())
    core = weakref.ref(server._core)
    del server
    gc.collect()
    assert core() is None


def test_calls_back_to_a_client_are_authorized(address: str) -> None:
    @rrpc.service
    class Server:
        @rrpc.method
        def call_back(self, method: str) -> str:
            result: str = rrpc.context().client().call(method)
            return result

    with (
        rrpc.serve(Vault(), listen=[], workers=2) as own,
        rrpc.serve(Server(), listen=address) as server,
        rrpc.connect(server.addresses[0], serve=own, timeout=20.0) as client,
    ):
        assert client.call("Server.call_back", "Vault.knock") in ("process", "anonymous")
        own.authorize(rrpc.Authorization({"Vault.open": ["same-user"]}))
        with pytest.raises(rrpc.PermissionDenied):
            client.call("Server.call_back", "Vault.knock")


def test_clients_of_another_version_need_reflection(address: str) -> None:
    """Equal versions don't: their clients connect and call without it."""
    service = sys.modules["rows_old"].Rows()
    rules = rrpc.Authorization({"lab.Rows": ["any"]})
    with rrpc.serve(service, listen=address, authorization=rules) as server:
        with connect_as("old", server.addresses[0]) as client:
            assert client.find("p") == "p"
        with pytest.raises(
            rrpc.FailedPrecondition, match=r"rrpc.Reflection.describe\(\) may not be called by"
        ):
            connect_as("new", server.addresses[0])
        server.authorize(rrpc.Authorization({"lab.Rows": ["any"], "rrpc.Reflection.describe": ["any"]}))
        with connect_as("new", server.addresses[0]) as client:
            assert client.find("p") == "p"


def test_who_may_connect(address: str) -> None:
    """A list of principals that the transport can prove; anonymous callers are none of them."""
    with rrpc.serve(Vault(), listen=address, allow_clients=["same-user"]) as server:
        if address.startswith("shm"):
            with rrpc.connect(server.addresses[0]) as client:
                assert client.call("rrpc.Health.check", "") == 1
            return
        with pytest.raises(
            rrpc.PermissionDenied, match="allow_clients: the server takes no connection of an anonymous"
        ):
            rrpc.connect(server.addresses[0])


def test_behind_rrpc_the_list_holds_where_the_client_ends() -> None:
    """Over the TCP of the first leg nothing proves the process: it is let in, to move, and can make no calls there."""
    with rrpc.serve(Vault(), listen="rrpc://127.0.0.1:0", allow_clients=["same-user"]) as server:
        with rrpc.connect(server.addresses[0]) as client:
            assert client.call("rrpc.Health.check", "") == 1
            assert client.info()["transport"] == "shm"
        refused = pytest.raises(rrpc.PermissionDenied, match="no connection of an anonymous caller")
        with rrpc.connect(server.addresses[0], transports="tcp") as client, refused:
            client.call("rrpc.Health.check", "")


def test_nobody_may_connect(short_tmp: Path) -> None:
    with (
        rrpc.serve(Vault(), listen=f"shm://{short_tmp}/x", allow_clients=[]) as server,
        pytest.raises(rrpc.PermissionDenied, match="takes no connection of user"),
    ):
        rrpc.connect(server.addresses[0])


@pytest.mark.parametrize(
    ("given", "error", "why"),
    [
        ("user:root", TypeError, "allow_clients: it takes a list"),
        (["usr:root"], ValueError, "allow_clients: there is no principal 'usr:root'"),
        (["user:no such"], ValueError, "this host has no user of that name"),
        (["token:batch"], ValueError, "allow_clients: tokens come with calls"),
    ],
)
def test_bad_lists_of_clients(given: Any, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        rrpc.serve(Vault(), allow_clients=given)
