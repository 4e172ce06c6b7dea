"""The pool's memory: few descriptors and files however many arrays, and pages that go back to the system."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from lab import LAB
from processes import ServeFactory, eventually, run_python, volume

import rrpc

MIB = 1 << 20


def resident_bytes(pid: int | str = "self") -> int:
    fields = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * resource.getpagesize()


@pytest.fixture
def quick_rest() -> Iterator[None]:
    rrpc.set_pool_idle_timeout(0.2)
    yield
    rrpc.set_pool_idle_timeout(10.0)


def test_arrays_need_few_descriptors() -> None:
    """Each large array had two of its own: a process of 1,024 descriptors ended at 509 arrays."""
    run_python(
        "import os, resource, rrpc, numpy as np\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "before = len(os.listdir('/proc/self/fd'))\n"
        "arrays = [rrpc.empty(200_000, np.uint8) for _ in range(10_000)]\n"
        "assert len(os.listdir('/proc/self/fd')) - before <= 16\n"
    )


def test_one_call_with_many_fresh_arrays(lab: rrpc.Client) -> None:
    arrays = [rrpc.empty(200_000, np.uint8) for _ in range(900)]
    for i, array in enumerate(arrays):
        array[:] = i % 251
    assert [part[0] for part in lab.call("Lab.echo", arrays)] == [i % 251 for i in range(900)]


def test_thousands_of_distinct_arrays_on_one_connection(lab: rrpc.Client) -> None:
    """After 1,024 every new one failed."""
    kept = []
    for i in range(volume(5000, 1500)):
        kept.append(rrpc.empty(140_000, np.uint8))
        kept[-1][:] = 0
        kept[-1][0] = i % 251
        assert lab.call("Lab.total", kept[-1]) == i % 251
    assert lab.call("Lab.total", kept[1]) == 1
    del kept
    assert lab.call("Lab.echo", rrpc.zeros(1_000_000, np.uint8)).nbytes == 1_000_000


def test_trim_gives_back_what_is_free() -> None:
    rrpc.trim()
    before = resident_bytes()
    held, free = rrpc.empty(MIB, np.uint8), rrpc.empty(256 * MIB, np.uint8)
    held[:] = free[:] = 7
    del free
    assert resident_bytes() - before >= 256 * MIB
    assert rrpc.trim() >= 256 * MIB
    assert resident_bytes() - before <= 32 * MIB
    assert (held == 7).all()
    assert rrpc.trim() == 0


def test_calls_go_on_while_the_pool_is_trimmed(lab: rrpc.Client) -> None:
    for i in range(volume(200, 60)):
        sizes = (5000, 300_000 + 4096 * (i % 7), 3 * MIB)
        sent = [rrpc.empty(size, np.uint8) for size in sizes]
        for array in sent:
            array[:] = i % 251
        rrpc.trim()
        back = lab.call("Lab.echo", sent)
        del sent
        rrpc.trim()
        assert [part.size for part in back] == list(sizes)
        assert all((part == i % 251).all() for part in back)


@pytest.mark.usefixtures("quick_rest")
def test_free_memory_goes_back_after_a_rest(lab: rrpc.Client) -> None:
    rrpc.trim()
    before = resident_bytes()
    for _ in range(4):
        assert lab.call("Lab.echo", np.ones(64 * MIB, np.uint8)).nbytes == 64 * MIB
    eventually(lambda: resident_bytes() - before <= 32 * MIB, 30, "resident memory falls")


def test_a_servers_free_memory_goes_back_after_a_rest(serve: ServeFactory, transport: str) -> None:
    args = ["--pool-idle-timeout", "0.2"]
    served = serve(LAB, "Lab", listen=transport, module="lab_service", args=args)
    with rrpc.connect(served.address) as client:
        before = resident_bytes(served.pid)
        assert client.call("Lab.echo", np.ones(200 * MIB, np.uint8)).nbytes == 200 * MIB
        eventually(lambda: resident_bytes(served.pid) - before <= 64 * MIB, 30, "resident memory falls")


def test_what_a_servers_handlers_freed_goes_back_after_a_rest(serve: ServeFactory, transport: str) -> None:
    """The allocator keeps as much as its largest free arrays, in each worker thread's arena."""
    args = ["--pool-idle-timeout", "0.2", "--workers", "4"]
    served = serve(LAB, "Lab", listen=transport, module="lab_service", args=args)
    with rrpc.connect(served.address) as client:
        client.call("Lab.make", 1)
        before = resident_bytes(served.pid)
        for _ in range(4):
            for result in [client.start("Lab.make", 30 * MIB) for _ in range(4)]:
                assert result.result().nbytes == 30 * MIB
        eventually(lambda: resident_bytes(served.pid) - before <= 24 * MIB, 30, "resident memory falls")


def test_prefaulted_memory_is_there_and_stays(serve: ServeFactory, transport: str) -> None:
    args = ["--pool-prefault", str(64 * MIB), "--pool-idle-timeout", "0.2"]
    served = serve(LAB, "Lab", listen=transport, module="lab_service", args=args)
    before = resident_bytes(served.pid)
    assert before > 64 * MIB
    with rrpc.connect(served.address) as client:
        assert client.call("Lab.total", np.ones(200 * MIB, np.uint8)) == 200 * MIB
        eventually(lambda: resident_bytes(served.pid) - before <= 32 * MIB, 30, "resident memory falls")
    assert resident_bytes(served.pid) >= 64 * MIB


def test_a_process_prefaults_its_own_pool() -> None:
    run_python(
        "import rrpc\n"
        "def resident(): return int(open('/proc/self/statm').read().split()[1]) * 4096\n"
        "before = resident()\n"
        "rrpc.prefault_pool(64 << 20)\n"
        "assert resident() - before >= 64 << 20\n"
        "rrpc.trim()\n"
        "assert resident() - before >= 64 << 20\n"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_another_user_cannot_open_pool_memory_again_for_writing() -> None:
    run_python(
        "import os, sys, rrpc, numpy as np\n"
        "array = rrpc.empty(300_000, np.uint8)\n"
        "links = {int(fd): os.readlink('/proc/self/fd/' + fd) for fd in os.listdir('/proc/self/fd')\n"
        "         if os.path.exists('/proc/self/fd/' + fd)}\n"
        "files = [fd for fd, name in links.items() if 'rrpc-pool' in name]\n"
        "assert files\n"
        "if (child := os.fork()) == 0:\n"
        "    os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "    for fd in files:\n"
        "        try: os.open(f'/proc/self/fd/{fd}', os.O_RDWR)\n"
        "        except PermissionError: continue\n"
        "        os._exit(1)\n"
        "    os._exit(0)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
    )


def test_a_negative_rest_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 s"):
        rrpc.set_pool_idle_timeout(-1)
