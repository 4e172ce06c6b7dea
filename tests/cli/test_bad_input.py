"""What users get wrong: one clear line, exit code 2 from the commands, never a traceback of our own, never a hang."""

import re
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from lab import LabServer
from processes import run_command, run_python

import rrpc

SERVICE = """
import rrpc

class Plain: ...

@rrpc.service
class Fine:
    def __init__(self, size: int = 1, ratio: float = 1.0) -> None:
        if size < 0:
            raise ValueError("size can't be negative")

    @rrpc.method
    def get(self) -> int:
        return 1

@rrpc.service
class Needs:
    def __init__(self, path: str) -> None: ...

    @rrpc.method
    def get(self) -> int:
        return 1
"""

BAD_ANNOTATION = """
import rrpc

@rrpc.service
class Bad:
    @rrpc.method
    def get(self, x) -> int:
        return 1
"""


def command(module: str, folder: Path, *arguments: str) -> str:
    """Runs it to its end; checks exit code 2 and one line on stderr, and gives that."""
    done = run_command(module, *arguments, cwd=folder, check=False)
    assert done.returncode == 2, f"{done.returncode}: {done.stdout}{done.stderr}"
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith(f"rrpc-{module}: ")
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return lines[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "fine.py").write_text(SERVICE)
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "syntax.py").write_text("def f(:\n")
    (tmp_path / "raises.py").write_text("raise RuntimeError('at import')\n")
    (tmp_path / "exits.py").write_text("raise SystemExit(0)\n")
    (tmp_path / "annotation.py").write_text(BAD_ANNOTATION)
    return tmp_path


TARGETS = {
    "nomodule:X": "no module nomodule",
    "fine": "module:Service",
    ":Fine": "module:Service",
    "fine:": "module:Service",
    "fine:Nope": "has no Nope; it has Fine, Needs",
    "fine:Plain": "no service",
    "fine:rrpc": "no service",
    "broken:X": "nothing_of_this_name",
    "syntax:X": "SyntaxError",
    "raises:X": "at import",
    "exits:X": "ended the process",
    "annotation:Bad": r"Bad\.get",
}


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_no_such_service(folder: Path, target: str) -> None:
    said = TARGETS[target]
    assert re.search(said, command("serve", folder, target, "--listen", "tcp://127.0.0.1:0"))
    assert re.search(said, command("gen", folder, target))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "module:Service"),
        (["fine:Fine", "fine:Fine"], "two services are called Fine"),
        (["fine:Needs"], "needs --arg path="),
        (["fine:Fine", "--arg", "size"], "name=value"),
        (["fine:Fine", "--arg", "size=big"], "size=big"),
        (["fine:Fine", "--arg", "ratio=x"], "ratio=x"),
        (["fine:Fine", "--arg", "nope=1"], "no such constructor argument"),
        (["fine:Fine", "--arg", "Nope.size=1"], "no service Nope"),
        (["fine:Fine", "fine:Needs", "--arg", "size=1"], "Fine.size"),
        (["fine:Fine", "--arg", "size=-1"], "size can't be negative"),
        (["fine:Fine", "--workers", "0"], "--workers"),
        (["fine:Fine", "--workers", "many"], "--workers"),
        (["fine:Fine", "--pool-limit", "lots"], "--pool-limit"),
        (["fine:Fine", "--grace", "soon"], "--grace"),
        (["fine:Fine", "--log-level", "loud"], "--log-level"),
        (
            ["fine:Fine", "--transports", "tcp,rdma"],
            "lists 'rdma'; it may list, best first, some of shm, verbs, tcp",
        ),
        (["fine:Fine", "--nope"], "--nope"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_options_of_serve(folder: Path, arguments: list[str], said: str) -> None:
    assert said in command("serve", folder, *arguments, "--listen", "tcp://127.0.0.1:0")


# Without adapters; what is wrong with an address where there are some is tried where there are some.
NO_ADAPTER = r"^(.*: )?verbs(\+tcp)?:// can't be had: .*(apt install|rdma link add|adapter)"

ADDRESSES = {
    "http://127.0.0.1:1": "scheme",
    "127.0.0.1:7471": "scheme",
    "": "scheme",
    "://x": "scheme",
    "verbs://127.0.0.1:1": NO_ADAPTER,
    "verbs+tcp://127.0.0.1:1": NO_ADAPTER,
    "verbs://127.0.0.1:1?device=rxe0&gid=1": NO_ADAPTER,
    "verbs+udp://127.0.0.1:1": "scheme",
    "verbs://": "host and port",
    "tcp://127.0.0.1": "port",
    "tcp://127.0.0.1:": "port",
    "tcp://127.0.0.1:http": "port",
    "tcp://127.0.0.1:70000": "port",
    "tcp://127.0.0.1:-1": "port",
    "rrpc://": "",
    "tcp://": "",
    "shm://": "",
    "shm:///no/such/folder/x.sock": "no/such/folder",
    "shm:///" + "x" * 200: "107",
}


def test_options_behind_rrpc_are_for_clients(folder: Path) -> None:
    address = "rrpc://127.0.0.1:0?device=rxe0"
    assert "is for clients of rrpc://" in command("serve", folder, "fine:Fine", "--listen", address)


@pytest.mark.parametrize("address", ADDRESSES)
def test_bad_addresses(folder: Path, address: str) -> None:
    said = ADDRESSES[address]
    if said == NO_ADAPTER and not rrpc.transports()["verbs"]:
        said = "verbs"
    assert re.search(said, command("serve", folder, "fine:Fine", "--listen", address))
    with pytest.raises(rrpc.RpcError, match=said) as raised:
        rrpc.connect(address, connect_timeout=5.0)
    assert "\n" not in str(raised.value)


def test_unresolvable_names(folder: Path) -> None:
    for address in ("tcp://no.such.host.invalid:1", "rrpc://no.such.host.invalid:1"):
        with pytest.raises(rrpc.RpcError, match=r"no\.such\.host\.invalid"):
            rrpc.connect(address, connect_timeout=20.0)
    assert "198.51.100.1" in command("serve", folder, "fine:Fine", "--listen", "tcp://198.51.100.1:1")


def test_port_in_use(folder: Path, lab_server: LabServer) -> None:
    for transport in ("tcp", "rrpc", "shm"):
        address = lab_server.address(transport)
        line = command("serve", folder, "fine:Fine", "--listen", "tcp://127.0.0.1:0", "--listen", address)
        assert "in use" in line
        assert address.split("://")[1] in line


def test_a_file_that_is_no_socket(folder: Path) -> None:
    """It isn't deleted to make room."""
    path = folder / "precious.txt"
    path.write_text("data")
    assert str(path) in command("serve", folder, "fine:Fine", "--listen", f"shm://{path}")
    assert path.read_text() == "data"
    with pytest.raises(rrpc.Unavailable, match="precious"):
        rrpc.connect(f"shm://{path}", connect_timeout=5.0)


def test_bad_options_of_gen(folder: Path) -> None:
    assert "--nope" in command("gen", folder, "fine:Fine", "--nope")
    assert "no/such" in command("gen", folder, "fine:Fine", "-o", "no/such/file.py")


# Clients


def test_nobody_there(new_address: Callable[[str], str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for address in (f"tcp://127.0.0.1:{port}", f"rrpc://127.0.0.1:{port}", new_address("shm")):
        with pytest.raises(rrpc.Unavailable) as raised:
            rrpc.connect(address, connect_timeout=5.0)
        assert address.split("://")[1] in str(raised.value)
        assert "\n" not in str(raised.value)


def test_wrong_options(lab_address: str) -> None:
    with pytest.raises(TypeError, match="'slotz'"):
        rrpc.connect(lab_address, slotz=4)
    for name, value in [
        ("slots", 3),
        ("slots", 17),
        ("slots", 1 << 20),
        ("slots", -1),
        ("slots", "many"),
        ("slot_bytes", 100),
        ("slot_bytes", 1 << 30),
        ("read_depth", 0),
        ("keepalive_interval", -1.0),
        ("keepalive_timeout", "long"),
        ("lease_timeout", float("nan")),
    ]:
        options: dict[str, object] = {name: value}
        with pytest.raises((rrpc.InvalidArgument, ValueError, TypeError), match=name):
            rrpc.connect(lab_address, **options)  # type: ignore[arg-type]
    with pytest.raises((rrpc.InvalidArgument, ValueError), match="busy"):
        rrpc.connect(lab_address, poll="often")
    with pytest.raises((rrpc.InvalidArgument, ValueError), match="timeout"):
        rrpc.connect(lab_address, connect_timeout=-1.0)


@rrpc.service
class Nothing:
    @rrpc.method
    def get(self) -> None: ...


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["nope"], "lists 'nope'; it may list, best first, some of shm, verbs, tcp"),
        ("verbs,rdma", "lists 'rdma'"),
        ([], "lists no transport"),
        ("tcp,tcp", "lists tcp twice"),
        (["verbs+tcp"], r"lists 'verbs\+tcp'"),
        (5, "transports"),
    ],
    ids=str,
)
def test_wrong_transports(lab_server: LabServer, given: object, said: str) -> None:
    with pytest.raises(rrpc.InvalidArgument, match=said):
        rrpc.connect(lab_server.address("rrpc"), transports=given)
    with pytest.raises(rrpc.InvalidArgument, match=said):
        rrpc.Server(Nothing(), transports=given)


def test_wrong_transports_in_the_environment(lab_server: LabServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RRPC_TRANSPORTS", "shm,tpc")
    with pytest.raises(rrpc.InvalidArgument, match="environment's RRPC_TRANSPORTS lists 'tpc'"):
        rrpc.connect(lab_server.address("rrpc"))
    rrpc.connect(lab_server.address("rrpc"), transports="tcp").close()


def test_wrong_use_of_info(folder: Path) -> None:
    assert "scheme" in command("info", folder, "127.0.0.1:7471")
    assert "refused" in command("info", folder, "tcp://127.0.0.1:1")
    assert "--timeout" in command("info", folder, "--timeout", "long")


def test_options_at_odds_between_the_ends(lab_address: str) -> None:
    """Each end has its own geometry; they agree on what both have."""
    for options in (
        {"slots": 16},
        {"slots": 4096},
        {"slot_bytes": 512},
        {"slot_bytes": 1 << 20},
        {"read_depth": 1},
    ):
        given: dict[str, int] = options
        with rrpc.connect(lab_address, timeout=20.0, **given) as client:
            futures = [client.start("Lab.echo", "x" * (i * 40)) for i in range(300)]
            assert [len(f.result()) for f in futures] == [i * 40 for i in range(300)]
            assert client.call("Lab.total", np.ones(500_000)) == 500_000


def test_bounds_of_a_connection(lab_address: str, request: pytest.FixtureRequest) -> None:
    name = request.node.name
    with rrpc.connect(lab_address, timeout=20.0, calls_in_flight_max=4, exposed_bytes_max=1 << 20) as client:
        held = [client.start("Lab.hold", name) for _ in range(4)]
        with pytest.raises(rrpc.ResourceExhausted, match="calls_in_flight_max"):
            client.call("Lab.add", 1)
        with rrpc.connect(lab_address) as other:
            other.call("Lab.release", name)
        assert all(f.result() for f in held)
        with pytest.raises(rrpc.ResourceExhausted, match="exposed_bytes_max"):
            client.call("Lab.size", bytes(2 << 20))
        for _ in range(10):
            assert client.call("Lab.size", bytes(1 << 20)) == 1 << 20


POOL = """
import sys, numpy as np, rrpc
rrpc.set_pool_limit(16 << 20)
with rrpc.connect(sys.argv[1], timeout=30.0) as client:
    for attempt in (lambda: rrpc.empty(32 << 20, np.uint8), lambda: client.call("Lab.make", 32 << 20)):
        try:
            attempt()
        except rrpc.ResourceExhausted as error:
            assert "pool limit" in str(error), error
        else:
            raise AssertionError("no error")
    kept = [rrpc.empty(4 << 20, np.uint8) for _ in range(4)]
    try:
        rrpc.empty(4 << 20, np.uint8)
    except rrpc.ResourceExhausted as error:
        print(error)
    del kept
    assert client.call("Lab.make", 8 << 20, 1).sum() == 8 << 20
    assert client.call("Lab.size", bytes(32 << 20)) == 32 << 20
    out = np.empty(32 << 20, np.uint8)
    assert client.call("Lab.make", 32 << 20, 2, out=out)[-1] == 2
"""


def test_the_clients_pool_limit(lab_address: str) -> None:
    assert "pool limit of 16777216 bytes is reached" in run_python(POOL, lab_address).stdout


def test_few_descriptors(lab_server: LabServer) -> None:
    """At the limit of open files connecting fails with a clear error; the process goes on."""
    code = """
import resource, sys, time, rrpc
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
clients = []
try:
    while True:
        clients.append(rrpc.connect(sys.argv[1], connect_timeout=5.0))
except rrpc.RpcError as error:
    print(len(clients), error)
assert clients[0].call("Lab.add", 1) == 2
for client in clients:
    client.close()
end = time.monotonic() + 10
while True:  # closing lets the last words out first
    try:
        again = rrpc.connect(sys.argv[1], connect_timeout=5.0)
        break
    except rrpc.RpcError:
        assert time.monotonic() < end
        time.sleep(0.01)
assert again.call("Lab.add", 1) == 2
"""
    for transport in ("tcp", "shm"):
        done = run_python(code, lab_server.address(transport))
        assert re.search(r"^\d+ .*(files|descriptors|ulimit)", done.stdout), done.stdout
