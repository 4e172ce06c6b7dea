"""What a user gives or does wrong is told in one line, where the mistake is."""

import asyncio
import contextlib
import copy
import datetime
import errno
import gc
import pickle
import re
import subprocess
import sys
import sysconfig
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from processes import eventually
from styles import STYLES, calling

import rrpc
from rrpc.std.generated_stubs import HealthClient


@rrpc.service
class Echo:
    @rrpc.method
    def echo(self, number: int) -> int:
        return number

    @rrpc.method
    def numbers(self, count: int) -> Iterator[int]:
        yield from range(count)


@pytest.fixture
def echo() -> Iterator[rrpc.Client]:
    with (
        rrpc.serve(Echo(), listen="tcp://127.0.0.1:0") as server,
        rrpc.connect(server.addresses[0], timeout=30.0) as client,
    ):
        yield client


def test_a_taken_address_is_an_os_error(transport: str, new_address: Any) -> None:
    with rrpc.serve(Echo(), listen=new_address(transport)) as server:
        with pytest.raises(OSError) as caught:
            rrpc.serve(Echo(), listen=server.addresses[0])
        assert caught.value.errno == errno.EADDRINUSE
        assert caught.value.strerror == str(caught.value)
        assert isinstance(caught.value, rrpc.AlreadyExists)
        with pytest.raises(rrpc.AddressInUse, match=r"in use|already"):
            server.listen(server.addresses[0])


WRONG_TIMEOUTS = ["5", -1, -0.001, float("nan"), datetime.timedelta(seconds=5), b"1", [1.0]]
NO_TIMEOUT = r"timeout must be a number of seconds from 0 up, or None for no limit, not "


def wrong_timeout(timeout: Any) -> Any:
    return pytest.raises(rrpc.InvalidArgument, match=f"^{NO_TIMEOUT}{re.escape(repr(timeout))}$")


@pytest.mark.parametrize("timeout", WRONG_TIMEOUTS)
@pytest.mark.parametrize("style", STYLES)
def test_a_timeout_that_is_no_number_of_seconds(echo: rrpc.Client, style: str, timeout: Any) -> None:
    with calling(style, echo.address) as call:
        for _ in range(2):  # before there is a connection, and over it
            with wrong_timeout(timeout):
                call("Echo.echo", 1, timeout=timeout)
            assert call("Echo.echo", 1, timeout=np.float32(20)) == 1


@pytest.mark.parametrize("timeout", WRONG_TIMEOUTS)
def test_a_wrong_timeout_of_a_client_is_told_when_it_is_given(echo: rrpc.Client, timeout: Any) -> None:
    address = echo.address
    for make in (rrpc.connect, rrpc.aio.connect, rrpc.Client):
        with wrong_timeout(timeout):
            make(address, timeout=timeout)
    with wrong_timeout(timeout):
        echo.with_options(timeout=timeout)
    with wrong_timeout(timeout):
        rrpc.open_stream(echo, "Echo.numbers", 3, timeout=timeout)
    with pytest.raises(rrpc.InvalidArgument, match=f"^connect_{NO_TIMEOUT}"):
        rrpc.connect(address, connect_timeout=timeout)
    with rrpc.Channel(address) as channel, wrong_timeout(timeout):
        channel.wait_ready(timeout)


@pytest.mark.parametrize("timeout", [0, 0.0, 1e-9, 5e-7])
@pytest.mark.parametrize("style", STYLES)
def test_a_timeout_in_which_nothing_can_be_sent(echo: rrpc.Client, style: str, timeout: float) -> None:
    with calling(style, echo.address) as call:
        for _ in range(2):
            with pytest.raises(
                rrpc.DeadlineExceeded, match=r"^Echo.echo\(\): the deadline passed before the call was sent$"
            ):
                call("Echo.echo", 1, timeout=timeout)
            assert call("Echo.echo", 1) == 1


def test_timeouts_of_generated_methods(echo: rrpc.Client) -> None:
    with HealthClient(echo.address) as health:
        for _ in range(2):
            for call in (health.check, health.check.start):
                with wrong_timeout("5"):
                    call("Echo", timeout="5")  # type: ignore[arg-type]
                with pytest.raises(rrpc.DeadlineExceeded, match="before the call was sent"):
                    call("Echo", timeout=0)
            assert health.check("Echo", timeout=20)


def test_no_time_to_connect_in(echo: rrpc.Client) -> None:
    with pytest.raises(
        rrpc.DeadlineExceeded, match=f"^connecting to {echo.address}: connect_timeout left no time"
    ):
        rrpc.connect(echo.address, connect_timeout=0)


@rrpc.service
class Plain:
    @rrpc.method
    def plain(self) -> None: ...


class NoService:
    pass


WRONG_CLIENTS: list[tuple[dict[str, Any], str]] = [
    ({"time_out": 3}, "there is no option 'time_out'; did you mean timeout?"),
    ({"conect_timeout": 3}, "there is no option 'conect_timeout'; did you mean connect_timeout?"),
    (
        {"keepalive_intervall": 3},
        "there is no option 'keepalive_intervall'; did you mean keepalive_interval?",
    ),
    ({"retry": 3}, "retry must be an rrpc.RetryPolicy, not 3"),
    ({"hedging": 0.1}, "hedging must be an rrpc.HedgingPolicy, not 0.1"),
    ({"backoff": 3}, "backoff must be an rrpc.Backoff, not 3"),
    ({"ejection": 3}, "ejection must be an rrpc.Ejection, not 3"),
    ({"metadata": "x"}, "metadata must be a dict of names to str or bytes, not str 'x'"),
    ({"metadata": {"x": 1}}, "metadata: the value of 'x' must be str or bytes, not int 1"),
]
WRONG_SERVERS: list[tuple[dict[str, Any], str]] = [
    ({"worker": 3}, "there is no option 'worker'; did you mean workers?"),
    ({"listens": "tcp://127.0.0.1:0"}, "there is no option 'listens'; did you mean listen?"),
    ({"workers": "4"}, "workers must be an int, not '4'"),
    ({"workers": 2.5}, "workers must be an int, not 2.5"),
    ({"workers": None}, "workers must be an int, not None"),
    ({"max_concurrency": "x"}, "max_concurrency must be an int, not 'x'"),
    ({"listen": 5}, "listen must be an address such as rrpc://host:port, or a list of them, not 5"),
    ({"listen": [5]}, "listen must be an address such as rrpc://host:port, or a list of them, not [5]"),
    ({"observer": 3}, "observer must be a function of an rrpc.observe.ServedCall, not 3"),
]
WRONG_SERVICES: list[tuple[Any, str]] = [
    ("tcp://127.0.0.1:0", "'tcp://127.0.0.1:0' is no service; an address is given as listen="),
    ([Plain()], "pass services one by one, not as a list: *services"),
    (NoService(), "NoService is no service: decorate its class with @rrpc.service"),
]


def told(line: str) -> Any:
    return pytest.raises((TypeError, ValueError), match=f"^{re.escape(line)}$")


@pytest.mark.parametrize(("options", "line"), WRONG_CLIENTS, ids=str)
def test_wrong_options_of_clients(options: dict[str, Any], line: str) -> None:
    for make in (rrpc.aio.connect, rrpc.connect, rrpc.Client):
        with told(line):
            make("tcp://127.0.0.1:1", **options)


@pytest.mark.parametrize("options", [{"retry": 3}, {"hedging": 3}, {"metadata": 3}], ids=str)
def test_wrong_options_of_calls(echo: rrpc.Client, options: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"^{next(iter(options))} must be an? .*, not .*3$"):
        echo.with_options(**options)


@pytest.mark.parametrize("addresses", [[], ()])
def test_no_addresses(addresses: Any) -> None:
    with told("the list of addresses is empty: a channel needs one, such as rrpc://host:port"):
        rrpc.connect(addresses)


@pytest.mark.parametrize(("options", "line"), WRONG_SERVERS, ids=str)
def test_wrong_options_of_servers(options: dict[str, Any], line: str) -> None:
    for make in (rrpc.Server, rrpc.aio.Server):
        with told(line):
            make(Plain(), **options)


@pytest.mark.parametrize(("service", "line"), WRONG_SERVICES, ids=["address", "list", "class"])
def test_what_is_no_service(service: Any, line: str) -> None:
    with told(line):
        rrpc.Server(service)


@pytest.mark.parametrize("copy", [pickle.dumps, copy.copy, copy.deepcopy])
def test_what_cant_be_pickled_or_copied_says_what_to_do(
    echo: rrpc.Client, copy: Callable[[Any], Any]
) -> None:
    address = echo.address
    advice = f"connections are this process's: pass its address, {address!r}, and connect there"
    with HealthClient(address) as health, rrpc.Channel(address) as channel, rrpc.Server(Plain()) as server:
        health.check("Echo")
        for client, name in ((echo, "Client"), (health, "HealthClient")):
            with told(f"{name} can't be pickled or copied, as its {advice}"):
                copy(client)
        with pytest.raises(
            TypeError, match=f"^Channel can't be .* pass its target, '{address}', and make another$"
        ):
            copy(channel)
        with pytest.raises(TypeError, match=r"^Server can't be pickled or copied: start one in each process"):
            copy(server)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("conect", "connect"),
        ("aio.Clent", "Client"),
        ("aio.Srver", "Server"),
        ("interceptors.SeverToken", "ServerToken"),
    ],
)
def test_did_you_mean(name: str, meant: str) -> None:
    done = subprocess.run([sys.executable, "-c", f"import rrpc\nrrpc.{name}"], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].endswith(f"Did you mean: '{meant}'?")


@contextlib.contextmanager
def unclosed(address: str) -> Iterator[None]:
    """What the block drops warns, once the thread that connected has let go of it, too."""
    text = f"^unclosed connections to {address}: close the client, or its channel$"
    with pytest.warns(ResourceWarning, match=text) as warned:  # noqa: PT031
        yield
        eventually(lambda: gc.collect() >= 0 and warned.list)


def test_a_client_left_open_gives_a_resource_warning(echo: rrpc.Client) -> None:
    address = echo.address
    client = rrpc.connect(address)
    clone = client.with_options(timeout=5.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del client  # its clone goes on with the connections
        gc.collect()
        assert clone.call("Echo.echo", 1) == 1
    with unclosed(address):
        del clone

    async def asynchronous() -> None:
        assert await rrpc.aio.connect(address).call("Echo.echo", 2) == 2

    with unclosed(address):
        asyncio.run(asynchronous())


def test_what_needs_no_close_gives_no_warning(echo: rrpc.Client) -> None:
    address = echo.address
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rrpc.connect(address, lazy=True)
        with rrpc.connect(address) as client:
            client.call("Echo.echo", 1)
        del client
        with pytest.raises(rrpc.Unavailable):
            rrpc.connect("tcp://127.0.0.1:1")
        with rrpc.serve(Echo(), listen="tcp://127.0.0.1:0") as server:
            lost = rrpc.connect(server.addresses[0])
        channel = weakref.ref(lost._channel)
        eventually(lambda: channel().info()["state"] != "ready")  # type: ignore[union-attr]
        del lost
        gc.collect()


def test_a_warning_as_the_interpreter_ends(echo: rrpc.Client) -> None:
    program = f"import rrpc\nclient = rrpc.connect({echo.address!r})\nclient.call('Echo.echo', 1)"
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program], capture_output=True, text=True, check=True
    )
    # Without the GIL the interpreter drops what modules hold after the warnings.
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        assert f"ResourceWarning: unclosed connections to {echo.address}" in done.stderr
    assert "Traceback" not in done.stderr
