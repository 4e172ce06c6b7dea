"""Which transport rrpc:// comes to, as its ends are told; the fake adapter of cpp/tests has more of this."""

import logging
from pathlib import Path

import pytest
from lab import LAB, LabServer
from processes import ServeFactory, run_python

import rrpc

NO_VERBS = bool(rrpc.transports()["verbs"])


@rrpc.service
class Nothing:
    @rrpc.method
    def get(self) -> None: ...


def test_the_client_says_what_and_in_which_order(lab_server: LabServer) -> None:
    address = lab_server.address("rrpc")
    for transports, chosen in [(None, "shm"), ("tcp", "tcp"), (["tcp", "shm"], "tcp"), (("shm",), "shm")]:
        with rrpc.connect(address, transports=transports, timeout=20.0) as client:
            assert client.info()["transport"] == chosen
            assert client.call("Lab.add", 1) == 2
            listed = transports or ("shm", "verbs", "tcp")
            assert {name for name in client.info()["why_not"] if name not in listed} == {
                name for name in ("shm", "verbs", "tcp") if name not in listed
            }


def test_the_environment_is_the_default(lab_server: LabServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RRPC_TRANSPORTS", "tcp, shm")
    with rrpc.connect(lab_server.address("rrpc")) as client:
        assert client.info()["transport"] == "tcp"
    with rrpc.connect(lab_server.address("rrpc"), transports=["shm", "tcp"]) as client:
        assert client.info()["transport"] == "shm"


def test_nothing_is_left(lab_server: LabServer) -> None:
    """tcp brought the HELLO, and isn't used for calls if the option leaves it out."""
    if NO_VERBS:
        with pytest.raises(rrpc.Unavailable, match="verbs: the server offers none: it has no usable adapter"):
            rrpc.connect(lab_server.address("rrpc"), transports=["verbs"])
        with rrpc.connect(lab_server.address("rrpc"), transports=["verbs", "tcp"]) as client:
            assert client.info()["transport"] == "tcp"


def test_the_server_says_what_it_offers(serve: ServeFactory) -> None:
    served = serve(LAB, "Lab", listen="rrpc", module="lab_service", args=["--transports", "tcp"])
    with rrpc.connect(served.address, timeout=20.0) as client:
        assert client.info()["transport"] == "tcp"
        assert (
            client.info()["why_not"]["shm"] == "the server offers none: its transports option leaves it out"
        )
    with pytest.raises(rrpc.Unavailable, match="no transport that both ends allow"):
        rrpc.connect(served.address, transports=["shm"])

    served = serve(LAB, "Lab", listen="rrpc", module="lab_service", env={"RRPC_TRANSPORTS": "shm"})
    with rrpc.connect(served.address, timeout=20.0) as client:
        assert client.info()["transport"] == "shm"
    with pytest.raises(rrpc.Unavailable, match="tcp: the server's transports option leaves it out"):
        rrpc.connect(served.address, transports=["tcp"])


def test_a_server_that_can_offer_nothing_does_not_start() -> None:
    if NO_VERBS:
        with pytest.raises(rrpc.Unavailable, match="none of the transports allowed can be had: verbs: "):
            rrpc.Server(Nothing(), transports=["verbs"]).listen("rrpc://127.0.0.1:0")


def test_the_choice_is_logged(lab_server: LabServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="rrpc"):
        rrpc.connect(lab_server.address("rrpc"), transports=["tcp"]).close()
    assert len(caplog.messages) == 1
    assert ": over tcp; not shm: the transports option leaves it out" in caplog.messages[0]


def test_exposures_are_told(lab: rrpc.Client) -> None:
    assert lab.info()["exposure"] == "checked"


@pytest.mark.parametrize(
    ("plugin", "said"),
    [
        (
            "/no/such/_verbs.so",
            r"no verbs provider \(there is no /no/such/_verbs\.so\); build it where .*apt install",
        ),
        (__file__, r"can't be loaded from .*test_transports\.py"),
        ("libc", "is not rrpc's verbs provider"),
    ],
)
def test_why_verbs_cannot_be_loaded(plugin: str, said: str) -> None:
    if plugin == "libc":  # a shared object of somebody else's
        maps = Path("/proc/self/maps").read_text().splitlines()
        plugin = next(line.split()[-1] for line in maps if "/libc.so" in line or "/libc-" in line)
    code = f"""
import os, re, rrpc
os.environ["RRPC_VERBS_PLUGIN"] = {plugin!r}
for scheme in ("verbs", "verbs+tcp"):
    try:
        rrpc.connect(f"{{scheme}}://127.0.0.1:7471")
    except rrpc.RpcError as error:
        assert re.match(re.escape(scheme) + "://.*" + {said!r}, str(error)), error
        assert rrpc.transports()[scheme] == str(error)
    else:
        raise AssertionError("no error")
assert rrpc.adapters() == []
"""
    run_python(code)


def test_the_core_is_not_linked_to_rdma_core() -> None:
    code = """
import rrpc

@rrpc.service
class Nothing:
    @rrpc.method
    def get(self) -> None: ...

with rrpc.serve(Nothing(), listen="rrpc://127.0.0.1:0", transports="shm,tcp") as server:
    rrpc.connect(server.addresses[0]).close()
maps = open("/proc/self/maps").read()
assert "_core" in maps and "ibverbs" not in maps and "rdmacm" not in maps and "_verbs" not in maps
"""
    run_python(code)
