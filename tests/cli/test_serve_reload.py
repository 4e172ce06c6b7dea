"""rrpc-serve --reload: new code is served, broken code isn't, and no accepted call is lost on the way."""

import contextlib
import itertools
import signal
import threading
import time
from pathlib import Path

import pytest
from processes import Served, ServeFactory, eventually

import rrpc

pytestmark = pytest.mark.slow

SERVICE = """
import os, signal, threading, time
import rrpc
from reloaded_part import PART

@rrpc.service
class Changing:
    def __init__(self, size: int = 1) -> None:
        self.size = size
        self.ran = os.open("ran", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @rrpc.method
    def who(self) -> tuple[str, str, int, int]:
        return "VERSION", PART, self.size, os.getpid()

    @rrpc.method
    def run(self, number: int) -> int:
        time.sleep(0.002)
        os.write(self.ran, b"%d\\n" % number)
        return number

    @rrpc.method
    def hold(self) -> None:
        open("held", "w").close()
        while not os.path.exists("released"):
            time.sleep(0.01)

    @rrpc.method
    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

open("imported-VERSION", "w").close()
"""


class Project:
    """A folder with a service that is edited while it is served."""

    def __init__(self, folder: Path, serve: ServeFactory) -> None:
        self.folder, self.serve = folder, serve
        self.address = f"shm://{folder}/s.sock"
        self.edit("one")
        self.part("a")

    def edit(self, version: str, also: str = "") -> None:
        replace(self.folder / "reloaded.py", SERVICE.replace("VERSION", version) + also)

    def part(self, name: str) -> None:
        replace(self.folder / "reloaded_part.py", f"PART = {name!r}\n")

    def start(self, *args: str) -> Served:
        target = [] if "--config" in args else ["reloaded:Changing"]
        arguments = [*target, "--reload", "--listen", self.address, *args]
        return self.serve.start(arguments, 1 + args.count("--listen"), self.folder)

    def who(self) -> tuple[str, str, int, int] | None:
        try:
            with rrpc.connect(self.address, timeout=5.0) as client:
                found: tuple[str, str, int, int] = client.call("Changing.who")
                return found
        except rrpc.Unavailable:
            return None

    def serves(self, version: str, part: str = "a", size: int = 1) -> int:
        """Wait until it does; gives the process."""

        def so() -> int:
            found = self.who()
            return found[3] if found is not None and tuple(found[:3]) == (version, part, size) else 0

        return eventually(so, 20.0, f"{version} {part} {size}")


def replace(path: Path, text: str) -> None:
    """As editors do: never half a file."""
    beside = path.with_suffix(".tmp")
    beside.write_text(text)
    beside.replace(path)


@pytest.fixture
def project(short_tmp: Path, serve: ServeFactory) -> Project:
    return Project(short_tmp, serve)


def test_what_changes_is_served(project: Project) -> None:
    (project.folder / "serve.toml").write_text('[services."reloaded:Changing"]\nsize = 5')
    # Who connects has 127.0.0.1, and so doesn't take the port while nobody listens there.
    served = project.start("--config", "serve.toml", "--listen", "tcp://127.0.7.1:0")
    first = project.serves("one", size=5)
    assert first != served.pid
    project.edit("two")
    second = project.serves("two", size=5)
    project.part("b")
    third = project.serves("two", "b", 5)
    replace(project.folder / "serve.toml", '[services."reloaded:Changing"]\nsize = 6')
    fourth = project.serves("two", "b", 6)
    assert len({first, second, third, fourth}) == 4
    with rrpc.connect(served.addresses[1], timeout=20.0) as client:  # the port that the first one took
        assert client.call("Changing.who")[3] == fourth
    assert "reloaded.py changed: reloading" in served.log
    assert "reloaded_part.py changed: reloading" in served.log
    assert served.terminate() == 0
    assert project.who() is None


def test_broken_code_leaves_the_old_one_serving(project: Project) -> None:
    served = project.start()
    first = project.serves("one")
    broken = {
        "def (": "SyntaxError",
        "import nothing_of_this_name": "No module named 'nothing_of_this_name'",
        "raise RuntimeError('no luck')": "no luck",
    }
    for number, (text, said) in enumerate(broken.items(), 1):
        project.edit("broken", f"\n{text}\n")
        eventually(lambda said=said: said in served.log)  # type: ignore[misc]
        eventually(lambda count=number: served.log.count("the old one goes on") == count)  # type: ignore[misc]
        assert project.serves("one") == first
    project.edit("two", "\nimport nothing_of_this_name\n")
    eventually(lambda: served.log.count("the old one goes on") == 4)
    (project.folder / "nothing_of_this_name.py").touch()  # it wasn't among the files, as it wasn't there
    assert project.serves("two") != first
    # In a module that the service imports: it is no longer among the imported ones when the import has failed.
    replace(project.folder / "reloaded_part.py", "def (\n")
    eventually(lambda: served.log.count("the old one goes on") == 5)
    project.part("b")
    project.serves("two", "b")
    assert served.terminate() == 0


def test_a_server_that_dies_is_started_after_the_next_change(
    project: Project,
) -> None:
    served = project.start()
    project.serves("one")
    with rrpc.connect(project.address, timeout=20.0) as client, pytest.raises(rrpc.Unavailable):
        client.call("Changing.die")
    eventually(lambda: "the server ended (exit code -9); waiting for a change" in served.log)
    assert project.who() is None
    project.edit("two")
    project.serves("two")
    assert served.terminate() == 0


def test_the_old_server_finishes_its_calls_first(project: Project) -> None:
    """Also when more changes come while it does."""
    served = project.start()
    with rrpc.connect(project.address, timeout=60.0) as client:
        held = client.start("Changing.hold")
        eventually((project.folder / "held").exists)
        for version in ("two", "three"):
            project.edit(version)
            count = served.log.count("changed: reloading") + 1
            eventually(lambda count=count: served.log.count("changed: reloading") == count)  # type: ignore[misc]
            eventually((project.folder / f"imported-{version}").exists)
            eventually(lambda: project.who() is None)
        imported = time.monotonic()
        eventually(lambda: held.done() or time.monotonic() > imported + 0.2)
        assert not held.done()
        (project.folder / "released").touch()
        held.result()
    project.serves("three")
    assert served.terminate() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_its_end_drains_too(project: Project, number: int) -> None:
    served = project.start()
    with rrpc.connect(project.address, timeout=20.0) as client:
        held = client.start("Changing.hold")
        eventually((project.folder / "held").exists)
        served.signal(number)
        eventually(lambda: project.who() is None)
        assert not held.done()
        (project.folder / "released").touch()
        held.result()
    assert served.wait() == 0


def test_nothing_stays_when_the_supervisor_is_killed(project: Project) -> None:
    served = project.start()
    pid = project.serves("one")
    served.kill()
    eventually(lambda: not Path(f"/proc/{pid}").exists())


def test_no_accepted_call_is_lost_under_load(project: Project) -> None:
    """Every call whose handler ran has been answered, though the server was replaced three times meanwhile."""
    served = project.start()
    stop = threading.Event()
    answered: list[int] = []

    def call_on(first: int) -> None:
        numbers = itertools.count(first, 4)  # of this thread alone
        while not stop.is_set():
            time.sleep(0.01)
            with (
                contextlib.suppress(rrpc.Unavailable),
                rrpc.connect(project.address, timeout=20.0) as client,
            ):
                while not stop.is_set():
                    answered.append(client.call("Changing.run", next(numbers)))

    callers = [threading.Thread(target=call_on, args=(first,)) for first in range(4)]
    for caller in callers:
        caller.start()
    try:
        for version in ("two", "three", "four"):
            many = len(answered) + 50
            eventually(lambda many=many: len(answered) > many)  # type: ignore[misc]
            project.edit(version)
            project.serves(version)
    finally:
        stop.set()
        for caller in callers:
            caller.join()
    ran = [int(line) for line in (project.folder / "ran").read_text().split()]
    assert len(ran) == len(set(ran)) > 200
    assert set(ran) == set(answered)
    assert served.terminate() == 0
