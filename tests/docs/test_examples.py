"""Every example, run as a user runs it; and what its user sees when something is wrong."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from processes import ROOT, Served, ServeFactory, child_environment, run_command

import rrpc

NEAREST = ROOT / "examples" / "nearest"
BLOBS = ROOT / "examples" / "blobs"
BATCHES = ROOT / "examples" / "batches"
FLEET = ROOT / "examples" / "fleet"
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
    log = tmp_path / "serve.log"
    server = Served.launch(command, BLOBS, log, child_environment())
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


@pytest.mark.slow
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
        (BATCHES, "batches:Batches", "batches_client.py"),
        (FLEET, "fleet.rrpc", "fleet_client.py"),
        (ROOT / "examples" / "digits", "digits:Digits", "digits_client.py"),
        (ROOT / "examples" / "parameters", "parameters:Parameters", "parameters_client.py"),
        (ROOT, "bench.peers.rrpc_service:Bench", "bench/peers/rrpc_client.py"),
    ],
)
def test_generated_files_are_current(folder: Path, service: str, client: str) -> None:
    done = run_command("gen", *service.split(), "-o", client, "--check", cwd=folder, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


ROWS_BYTES = 64 * 64 * 4  # pixels of a batch, which are read remotely
PER_EPOCH = 23  # batches, the last of 29 rows
PREFETCH = 4
TOKEN = "sesame"
FAILS_ONCE = """
import rrpc

class FailsOnce(rrpc.ServerInterceptor):
    def __init__(self):
        self.failed = set()

    def unary(self, call):
        result = yield call
        if call.method.startswith("Batches.") and call.method not in self.failed:
            self.failed.add(call.method)
            raise rrpc.Unavailable("back in a moment")  # a handler has run: only idempotent calls are made again
        return result
"""


@pytest.fixture(scope="module")
def data_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The data server's addresses, by scheme."""
    command = [sys.executable, "-m", "rrpc.cli.serve", "batches:Batches", "--interceptor", "guard:token"]
    command += ["--listen", "rrpc://127.0.0.1:0", "--listen", "tcp://127.0.0.1:0"]
    log = tmp_path_factory.mktemp("batches") / "log"
    server = Served.launch(command, BATCHES, log, child_environment(BATCHES_TOKEN=TOKEN))
    try:
        server.wait_until_listening(2)
        yield {address.split(":")[0]: address for address in server.addresses}
        assert server.terminate() == 0
    finally:
        if server.process.poll() is None:
            server.kill()


def server_counters(address: str) -> dict[str, int]:
    token = rrpc.interceptors.ClientToken(TOKEN, allow_clear=True)
    with rrpc.connect(address, interceptors=[token]) as client:
        counted: dict[str, int] = client.call("Batches.counters", timeout=10.0)
        return counted


def train(address: str, *arguments: str | Path, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
    return run(BATCHES / "train.py", "--server", address, *arguments, BATCHES_TOKEN=token)


def trained(
    address: str, *arguments: str | Path, token: str = TOKEN
) -> tuple[dict[str, int], list[float], str]:
    """Run it: the numbers and the transport that it printed, and the accuracy after each epoch."""
    done = train(address, *arguments, token=token)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    accuracies = [float(text) for text in re.findall(r"accuracy (\S+) after", done.stdout)]
    found = re.search(
        r"^trained +(?P<taken>\S+) batches, (?P<a_second>\S+) a second\n"
        r"arrays +(?P<bytes>\S+) bytes: (?P<read>\S+) read remotely, (?P<copied>\S+) copied\n"
        r"server +(?P<made>\S+) batches made, epochs left early: (?P<left>\S+)\n"
        r"transport +(?P<transport>\S+)$",
        done.stdout,
        re.MULTILINE,
    )
    assert found, done.stdout
    numbers = found.groupdict()
    transport = numbers.pop("transport")
    return {name: int(text.replace(",", "")) for name, text in numbers.items()}, accuracies, transport


def accuracies_without_a_server(
    target: float, epochs: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[float], int]:
    """After each epoch, of the same training in this process; and after how many batches it ended."""
    monkeypatch.syspath_prepend(str(BATCHES))
    from batches import Batches  # type: ignore[import-not-found]
    from sklearn.datasets import load_digits
    from softmax import SoftmaxRegression  # type: ignore[import-not-found]

    data, model, taken, accuracies = Batches(), SoftmaxRegression(64), 0, []
    digits = load_digits()
    pixels, labels = digits.data[::5] / 16, digits.target[::5]
    for epoch in range(1, epochs + 1):
        for batch in data.epoch("train", 64, epoch):
            model.learn(batch)
            taken += 1
            accuracy = float(((pixels @ model.weights + model.bias).argmax(axis=1) == labels).mean())
            if accuracy >= target:
                break
        accuracies.append(round(accuracy, 3))
        if accuracy >= target:
            break
    return accuracies, taken


@pytest.mark.parametrize(("scheme", "transport"), [("rrpc", "shm"), ("tcp", "tcp")])
def test_batches_are_learned_from_until_it_is_enough(
    data_server: dict[str, str], monkeypatch: pytest.MonkeyPatch, scheme: str, transport: str
) -> None:
    address = data_server[scheme]
    before = server_counters(address)
    numbers, accuracies, used = trained(address)
    after = server_counters(address)
    expected, taken = accuracies_without_a_server(0.95, 30, monkeypatch)
    assert accuracies == expected
    assert accuracies[-1] >= 0.95
    assert numbers["taken"] == taken
    assert taken % PER_EPOCH not in (0, PER_EPOCH - 1)  # else nothing was left early
    whole_epochs, more = divmod(taken, PER_EPOCH)
    assert numbers["bytes"] == whole_epochs * 1437 * (256 + 8) + more * 64 * (256 + 8)
    assert numbers["left"] == after["epochs_left_early"] - before["epochs_left_early"] == 1
    assert numbers["made"] == after["batches_made"] - before["batches_made"]
    # One more is made than may be under way: there is no room for it.
    assert taken <= numbers["made"] <= min(taken + PREFETCH + 1, (whole_epochs + 1) * PER_EPOCH)
    read_rows = whole_epochs * (PER_EPOCH - 1) + more
    assert read_rows * ROWS_BYTES <= numbers["read"] <= (read_rows + PREFETCH) * ROWS_BYTES
    assert numbers["copied"] == 0
    assert used == transport


def test_batches_of_whole_epochs(data_server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    numbers, accuracies, _ = trained(data_server["rrpc"], "--target", "2", "--epochs", "2")
    assert (accuracies, numbers["taken"]) == accuracies_without_a_server(2.0, 2, monkeypatch)
    assert numbers["made"] == numbers["taken"] == 2 * PER_EPOCH
    assert numbers["left"] == 0
    assert numbers["read"] == 2 * (PER_EPOCH - 1) * ROWS_BYTES
    assert numbers["a_second"] > 0


def test_batches_are_shuffled(data_server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BATCHES))
    from batches_client import BatchesClient  # type: ignore[import-not-found]

    token = rrpc.interceptors.ClientToken(TOKEN, allow_clear=True)
    with BatchesClient(data_server["rrpc"], interceptors=[token], timeout=30.0) as batches:
        whole = batches.whole("train")
        orders = [
            np.concatenate([batch.pixels for batch in batches.epoch("train", 100, seed)])
            for seed in (1, 1, 2)
        ]
    assert np.array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[0], orders[2])
    for rows in (orders[0], orders[2]):
        assert not np.array_equal(rows, whole.pixels)
        assert sorted(map(bytes, rows)) == sorted(map(bytes, whole.pixels))


def test_batches_has_a_timeline(data_server: dict[str, str], tmp_path: Path) -> None:
    trained(data_server["tcp"], "--epochs", "2", "--trace", tmp_path / "calls.json")
    events = json.loads((tmp_path / "calls.json").read_text())["traceEvents"]
    names = [event["name"] for event in events]
    assert names.count("Batches.epoch") >= 2
    assert {"Batches.whole", "handler", "stream"} <= set(names)


def test_batches_calls_again_when_the_server_is_unavailable(serve: ServeFactory, tmp_path: Path) -> None:
    (tmp_path / "flaky.py").write_text(FAILS_ONCE)
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    arguments = ["batches:Batches", "--listen", "tcp://127.0.0.1:0", "--interceptor", "flaky:FailsOnce"]
    served = serve.start(arguments, 1, folder=BATCHES, env={"PYTHONPATH": path})
    numbers, _, _ = trained(served.address, "--epochs", "1", token="")
    assert numbers["taken"] == PER_EPOCH


@pytest.mark.parametrize(
    ("arguments", "token", "words"),
    [
        ("--split tests", "sesame", ["no split 'tests'; there are train, validation"]),
        ("", "open", ["the token isn't one that this server knows"]),
        ("", "", ["the call has no token"]),
        ("--epochs 1 --trace /nowhere/calls.json", "sesame", ["/nowhere/calls.json"]),
    ],
)
def test_batches_says_what_is_wrong(
    data_server: dict[str, str], arguments: str, token: str, words: list[str]
) -> None:
    assert_one_line(train(data_server["rrpc"], *arguments.split(), token=token), "train:", *words)


def test_batches_gives_an_epoch_up_at_its_deadline(data_server: dict[str, str]) -> None:
    done = train(data_server["rrpc"], "--size", "1", "--target", "2", "--epoch-timeout", "0.02")
    assert_one_line(done, "train:")
    assert re.search("timeout|deadline", done.stderr)


@pytest.mark.parametrize("address", ["rrpc://127.0.0.1:1", "tcp://127.0.0.1:1"])
def test_batches_without_a_server(address: str) -> None:
    assert_one_line(train(address), "train:", address, "is the server running there?")
