"""What users get wrong with RDMA: one clear line that names the cure, soon, and a server that goes on."""

import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import lab_service
import pytest
from guest_network import down
from lab import LabServer, still_answers
from processes import child_environment, eventually
from under_way import slowly

import rrpc


def refusal(address: str, *kinds: type[rrpc.RpcError]) -> str:
    """The one line with which connecting fails."""
    with pytest.raises(kinds or rrpc.RpcError) as raised:
        rrpc.connect(address, connect_timeout=slowly(20.0)).close()
    line = str(raised.value)
    print(f"{address}: {type(raised.value).__name__}: {line}")
    assert "\n" not in line
    assert type(raised.value) is not rrpc.Internal
    return line


def host_and_port(address: str) -> str:
    return address.split("://")[1]


# cpp/tests/verbs_connecting.cc shows the other addresses that are malformed in themselves.
ADDRESSES = {
    "verbs://10.9.0.1:1": "is the server running there",
    "verbs://10.9.1.1:1": "is the server running there",
    "verbs+tcp://10.9.0.1:1": "refused",
    "verbs://198.51.100.1:1": "RDMA",
    "verbs+tcp://198.51.100.1:1": "198.51.100.1",
    "verbs://10.9.0.1:7000?device=mlx5_0": "there is no adapter mlx5_0; there are",
    "verbs://10.9.0.1:7000?device=siw0": "correct the route",
    "verbs://10.9.0.1:7000?color=red": "unknown option 'color'; there are device=NAME",
    "verbs://127.0.0.1:7000": "RDMA",
}


@pytest.mark.parametrize("address", ADDRESSES)
def test_addresses(address: str) -> None:
    assert ADDRESSES[address] in refusal(address)


PLACES = {
    "device=mlx5_0": "there is no adapter mlx5_0; there are",
    "device=siw0": "use verbs://",
    "gid=200": "GID index 200 is unused",
    "port=9": "ports are 1 to 1",
}


@pytest.mark.parametrize("place", PLACES)
def test_places_that_a_queue_pair_cannot_have(lab_server: LabServer, place: str) -> None:
    """By a socket they are looked at once the server has answered."""
    assert PLACES[place] in refusal(f"{lab_server.address('rxe-socket')}?{place}")
    still_answers(lab_server.address("rxe-socket"))


@pytest.mark.parametrize(
    "address", ["verbs://198.51.100.1:0", "verbs://127.0.0.1:0", "verbs+tcp://198.51.100.1:0"]
)
def test_listening_where_no_adapter_is(address: str) -> None:
    with pytest.raises(rrpc.RpcError, match=r"198\.51\.100\.1|127\.0\.0\.1") as raised:
        rrpc.serve(lab_service.Lab(), listen=address)
    print(raised.value)


def test_a_port_that_is_down(lab_server: LabServer) -> None:
    with down("rx0"):
        # rdma_cm finds no way by a link that is down; by a socket the adapter itself is looked at.
        assert "link" in refusal(lab_server.address("rxe"), rrpc.Unavailable, rrpc.DeadlineExceeded)
        line = refusal(lab_server.address("rxe-socket"), rrpc.Unavailable)
        assert "port 1 of rxe0 is down: bring its network interface up" in line
    still_answers(lab_server.address("siw"))


# Peers that speak verbs, or TCP, and not rrpc


@contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def listens_with_rdma_cm(pid: int) -> bool:
    command = ["rdma", "resource", "show", "cm_id"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return any("state LISTEN" in line and f"pid {pid} " in line for line in shown.splitlines())


SERVERS = {
    "rping over rxe": ("10.9.0.1", "7300", "rping", "-s", "-a", "10.9.0.1", "-p", "7300"),
    "rping over siw": ("10.9.1.1", "7301", "rping", "-s", "-a", "10.9.1.1", "-p", "7301"),
    "perftest": ("10.9.0.1", "7302", "ib_send_lat", "-F", "-R", "-n", "100", "-p", "7302"),
}


@pytest.mark.parametrize("server", SERVERS)
def test_servers_that_are_not_rrpc(server: str) -> None:
    host, port, *command = SERVERS[server]
    with running(*command) as process:
        eventually(lambda: listens_with_rdma_cm(process.pid), 10.0, f"{server} listens")
        line = refusal(f"verbs://{host}:{port}")
    assert "not rrpc" in line or "offer is cut short" in line


@pytest.mark.parametrize("transport", ["rxe", "siw"])
def test_clients_that_are_not_rrpc(lab_server: LabServer, transport: str) -> None:
    host, port = host_and_port(lab_server.address(transport)).split(":")
    done = subprocess.run(
        ["rping", "-c", "-a", host, "-p", port, "-C", "1"],
        capture_output=True,
        text=True,
        timeout=slowly(60),
        check=False,
    )
    assert done.returncode != 0 or "DISCONNECT EVENT" in done.stderr
    still_answers(lab_server.address(transport))


def introduction(kind: int, body: bytes, version: int = 2) -> bytes:
    return struct.pack("<4sBBH", b"rrvb", version, kind, len(body)) + body


GREETINGS = {
    "http": (b"HTTP/1.1 400 Bad Request\r\n\r\n", "doesn't speak verbs+tcp"),
    "another version": (introduction(1, b"", 9), "speaks version 9 of verbs+tcp"),
    "cut short": (introduction(1, b"\1\2\3"), "malformed"),
    "of no kind": (introduction(77, b""), "malformed"),
}


@pytest.mark.parametrize("what", GREETINGS)
def test_socket_servers_that_are_not_rrpc(what: str) -> None:
    answer, said = GREETINGS[what]
    with socket.create_server(("10.9.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(answer)
                while connection.recv(4096):
                    pass

        threading.Thread(target=serve, daemon=True).start()
        assert said in refusal(f"verbs+tcp://10.9.0.1:{listener.getsockname()[1]}", rrpc.ProtocolError)


def test_a_socket_client_that_is_not_rrpc(lab_server: LabServer) -> None:
    """The server's answers to each greeting: cpp/tests/verbs_connecting.cc."""
    host, port = host_and_port(lab_server.address("rxe-socket")).split(":")
    with socket.create_connection((host, int(port)), timeout=slowly(30)) as peer:
        peer.sendall(GREETINGS["http"][0])
        peer.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while peer.recv(4096):
                pass
    still_answers(lab_server.address("rxe-socket"))


# Machines that aren't set up

CONNECT = """
import sys, rrpc
try:
    rrpc.connect(sys.argv[1], connect_timeout=60.0).close()
except rrpc.RpcError as error:
    print(type(error).__name__, error)
"""


def without_the_right_to_lock(*command: str) -> str:
    """Runs it as a user is run: limits on locked memory hold."""
    done = subprocess.run(
        ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", *command],
        capture_output=True,
        text=True,
        env=child_environment(),
        timeout=slowly(120),
        check=False,
    )
    return done.stdout + done.stderr


def test_too_little_memory_may_be_locked(lab_server: LabServer) -> None:
    python = ["prlimit", "--memlock=65536", sys.executable, "-c", CONNECT]
    said = without_the_right_to_lock(*python, lab_server.address("rxe"))
    print(said)
    assert said.count("\n") == 1
    assert said.startswith("ResourceExhausted")
    assert "64 KiB" in said
    assert "ulimit -l unlimited" in said
    still_answers(lab_server.address("rxe"))
