"""Every example, run as a user runs it; and what its user sees when something is wrong."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import ROOT, Served, child_environment

NEAREST = ROOT / "examples" / "nearest"
BLOBS = ROOT / "examples" / "blobs"
MIB = 1 << 20

Blobs = Callable[..., subprocess.CompletedProcess[str]]


def run(*arguments: str | Path, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=child_environment(**environment),
        timeout=100,
        check=False,
    )


def assert_one_line(done: subprocess.CompletedProcess[str], *words: str, code: int = 1) -> None:
    assert done.returncode == code, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in lines[0]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Served]:
    command = [
        sys.executable,
        "-m",
        "rrpc.cli.serve",
        "blob_store:BlobStore",
        "--listen",
        "rrpc://127.0.0.1:0",
    ]
    command += ["--arg", f"directory={tmp_path / 'store'}"]
    server = Served(command, BLOBS, tmp_path / "serve.log", child_environment())
    try:
        server.wait_until_listening(1)
        yield server
        assert server.terminate() == 0
    finally:
        if server.process.poll() is None:
            server.kill()


@pytest.fixture
def blobs(store: Served, tmp_path: Path) -> Blobs:
    def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return run(BLOBS / "blobs.py", *arguments, "--server", store.address, cwd=tmp_path)

    return command


def test_nearest_demo() -> None:
    done = run(NEAREST / "demo.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all as scikit-learn's own" in done.stdout
    assert "64 MiB fetched, rrpc.empty array" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("folder", "service", "client"),
    [
        (NEAREST, "nearest:Nearest", "nearest_client.py"),
        (NEAREST, "nearest:Nearest --idl", "nearest.rrpc"),
        (BLOBS, "blob_store:BlobStore", "blob_store_client.py"),
        (ROOT, "bench.peers.rrpc_service:Bench", "bench/peers/rrpc_client.py"),
    ],
)
def test_generated_files_are_current(folder: Path, service: str, client: str) -> None:
    done = run("-m", "rrpc.cli.gen", *service.split(), "-o", client, "--check", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("nbytes", [0, 1, 5 * MIB + 3, 64 * MIB])
def test_blobs_come_back_as_they_went(blobs: Blobs, tmp_path: Path, nbytes: int) -> None:
    source, copy = tmp_path / "a file.bin", tmp_path / "copy.bin"
    source.write_bytes(os.urandom(nbytes))
    sent = blobs("put", source)
    assert sent.returncode == 0, sent.stderr
    got = blobs("get", "a file.bin", "--output", copy)
    assert got.returncode == 0, got.stderr
    assert got.stdout == sent.stdout
    assert copy.read_bytes() == source.read_bytes()
    assert blobs("list").stdout.split() == [f"{nbytes:,}", "a", "file.bin"]
    assert not list(tmp_path.glob(".*.part"))
    assert not list((tmp_path / "store").glob(".upload-*"))


def test_blobs_shows_a_bar(store: Served, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(bytes(MIB))
    arguments = (BLOBS / "blobs.py", "put", tmp_path / "source", "--server", store.address)
    done = run(*arguments, FORCE_COLOR="1")
    assert done.returncode == 0, done.stderr
    assert "━" in done.stderr
    assert "1.0 MiB" in done.stderr.replace("/1.0", " 1.0")


def test_blobs_are_replaced_and_deleted(blobs: Blobs, tmp_path: Path) -> None:
    source = tmp_path / "source"
    for contents in (b"first", b"second"):
        source.write_bytes(contents)
        assert blobs("put", source, "--name", "it").returncode == 0
    assert blobs("get", "it").returncode == 0
    assert (tmp_path / "it").read_bytes() == b"second"
    assert blobs("delete", "it").returncode == 0
    assert blobs("list").stdout == ""
    assert list((tmp_path / "store").iterdir()) == []
    assert_one_line(blobs("delete", "it"), "no such file: it")


def test_blobs_serves_files_put_there_by_hand(blobs: Blobs, tmp_path: Path) -> None:
    (tmp_path / "store" / "by-hand").write_bytes(b"contents")
    assert blobs("get", "by-hand").returncode == 0
    assert (tmp_path / "by-hand").read_bytes() == b"contents"


def test_a_blob_damaged_on_the_server_is_noticed(blobs: Blobs, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"contents")
    assert blobs("put", tmp_path / "source", "--name", "it").returncode == 0
    stored = tmp_path / "store" / "it"
    times = stored.stat()
    stored.write_bytes(b"CONTENTS")
    os.utime(stored, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert_one_line(blobs("get", "it"), "what arrived is not what the server has")
    assert not (tmp_path / "it").exists()


@pytest.mark.parametrize("command", ["put", "get", "delete"])
def test_blobs_refuses_bad_names(blobs: Blobs, tmp_path: Path, command: str) -> None:
    (tmp_path / "source").write_bytes(b"contents")
    for name in ("../escape", "/etc/passwd", ".hidden", "..", "a/b", "", "new\nline", "n" * 201):
        arguments = ("put", tmp_path / "source", "--name", name) if command == "put" else (command, name)
        assert_one_line(blobs(*arguments), "not a file name")
    assert not (tmp_path / "escape").exists()
    assert list((tmp_path / "store").iterdir()) == []


def test_blobs_says_what_is_missing(blobs: Blobs, tmp_path: Path) -> None:
    assert_one_line(blobs("put", tmp_path / "nothing"), "nothing", "No such file")
    assert_one_line(blobs("get", "nothing"), "no such file: nothing")
    assert_one_line(blobs("put", tmp_path), "directory")
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("address", ["rrpc://127.0.0.1:1", "tcp://127.0.0.1:1", "shm:///nowhere/socket"])
def test_blobs_without_a_server(tmp_path: Path, address: str) -> None:
    assert_one_line(run(BLOBS / "blobs.py", "list", "--server", address, cwd=tmp_path), "blobs:")


def test_blobs_with_an_address_of_no_known_kind(tmp_path: Path) -> None:
    done = run(BLOBS / "blobs.py", "list", "--server", "carrier-pigeon://here", cwd=tmp_path)
    assert_one_line(done, "carrier-pigeon")
