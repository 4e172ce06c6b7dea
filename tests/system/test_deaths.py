"""A process dies amid calls of every type, at whatever moment: the other one is left with nothing of them."""

import gc
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from flow_service import Flow
from lab import TRANSIENT
from lives import ENDS, KINDS, STYLES, Life, maternity
from processes import eventually, open_files, patience

import rrpc

__all__ = ["maternity"]

IDLE = {"connections": 0, "calls_running": 0, "calls_waiting": 0, "handlers": 0}
SHARED_FILES = 1  # which all connections over shm share, opened when it is first needed
LIVES = 7  # of each kind, at each end, in each style and over each transport


@pytest.fixture(params=STYLES)
def style(request: pytest.FixtureRequest) -> str:
    """Of both ends."""
    return str(request.param)


def _some_time(seed: int) -> None:
    """Until the moment at which a seed has death come, which is any."""
    time.sleep(random.Random(seed).uniform(0, 0.06))


def _streams() -> int:
    counts = Flow().counts()
    return counts["begun"] - counts["closed"]


def _held() -> dict[str, int]:
    """By what is under way: of the process's memory what is in use or open to a peer, and streams."""
    stats = rrpc.stats()
    return {**{name: stats[name] for name in TRANSIENT}, "streams": _streams()}


class _Survivor:
    """Watches what this process holds, from before the first life on."""

    def __init__(self, end: Any) -> None:
        self._end = end
        gc.collect()
        self._held = _held()
        self._most: dict[str, int] = {}

    def settled(self, seed: int) -> None:
        """Waits until nothing is left of a life; after the first one the process may keep what it needed for it."""
        shown: dict[str, int] = {}

        def settled() -> bool:
            gc.collect()  # a cancelled coroutine's traceback keeps what it had
            shown.update(_held() | self._end.counts() | self._kept())
            nothing = shown.items() >= (self._held | IDLE).items()
            return nothing and all(shown[name] <= most for name, most in self._most.items())

        try:
            eventually(settled)
        except AssertionError:
            raise AssertionError(f"seed {seed} left {shown}, not {self._held | self._most}") from None
        if not self._most:
            self._most = self._kept()
            self._most["files"] += SHARED_FILES

    def _kept(self) -> dict[str, int]:
        return {"files": open_files(), "tasks and threads": self._end.tasks()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_server_outlives_its_clients(
    maternity: Callable[..., Life], style: str, address: str, kind: str
) -> None:
    with ENDS[style](address) as end:
        survivor = _Survivor(end)
        for seed in range(LIVES):
            life = maternity(style, end.addresses[0], kind, seed)
            _some_time(seed)
            life.kill()
            survivor.settled(seed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_client_outlives_its_servers(
    maternity: Callable[..., Life],
    style: str,
    transport: str,
    new_address: Callable[[str], str],
    kind: str,
) -> None:
    with ENDS[style]() as end:
        survivor = _Survivor(end)
        for seed in range(LIVES):
            life = maternity(style, new_address(transport), "server")
            end.call(life.address, kind, seed)
            _some_time(seed)
            life.kill()
            eventually(end.over, patience(10), "the end of all calls")
            assert all(failure.startswith("Unavailable: ") for failure in end.failures), end.failures
            end.leave()
            survivor.settled(seed)
