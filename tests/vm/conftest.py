"""Tests that need RDMA adapters: collected only in the virtual machine that tools/vm/test.sh starts them in."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from processes import eventually

collect_ignore_glob = [] if os.environ.get("RRPC_IN_VM") else ["test_*.py"]


@pytest.fixture
def queue_pairs() -> Callable[[], int]:
    """How many reliable-connected ones the kernel has, of all processes."""

    def count() -> int:
        command = ["rdma", "-j", "resource", "show", "qp"]
        shown: list[dict[str, Any]] = json.loads(
            subprocess.run(command, check=True, capture_output=True, text=True).stdout
        )
        return sum(1 for queue_pair in shown if queue_pair.get("type") == "RC")

    return count


@pytest.fixture
def all_come_back(queue_pairs: Callable[[], int]) -> Iterator[None]:
    """After the test the kernel has no more queue pairs than before it."""
    before = queue_pairs()
    yield
    eventually(lambda: queue_pairs() <= before, what="queue pairs destroyed")


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@pytest.fixture
def down() -> Callable[[str], Any]:
    """``with down(link):`` the link is set down, and up again after it."""

    @contextmanager
    def made(link: str) -> Iterator[None]:
        ip("link", "set", link, "down")
        try:
            yield
        finally:
            ip("link", "set", link, "up")

    return made
