"""What the guest's kernel has: queue pairs that are counted, links that are set down."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def queue_pairs() -> list[dict[str, Any]]:
    """The reliable-connected ones that the kernel has, of all processes: "pid" while the thread lives that made it."""
    command = ["rdma", "-j", "resource", "show", "qp"]
    shown: list[dict[str, Any]] = json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout
    )
    return [queue_pair for queue_pair in shown if queue_pair.get("type") == "RC"]


@contextmanager
def down(*links: str) -> Iterator[None]:
    """The links are set down, and up again at the end."""
    try:
        for link in links:
            subprocess.run(["ip", "link", "set", link, "down"], check=True)
        yield
    finally:
        for link in links:
            subprocess.run(["ip", "link", "set", link, "up"], check=True)
