"""``python -m tests.faults.soak --minutes 60``: a long mixed load with checks; memory must not grow.

Clients of both styles come and go over shm and tcp, with calls, arrays, cancels and streams both ways; some are
killed. After each round everybody rests and gives free memory back: what a process still has of its own, which a file's
pages are not, is compared with what it had after the first rounds, which warm it up.
"""

import argparse
import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# The modules of the tests import each other by name.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "helpers"))

from faults.cases import STYLES, TRANSPORTS
from faults.lane import Ends, Process

ROUNDS = 30
WARM_UP = 6  # rounds
COMPARED = 5  # rounds after the warm-up, and as many at the end
GROWTH_MAX = 0.01
MORTAL_SECONDS = (0.05, 1.0)
NO_THREAD_CACHES = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
"""malloc keeps up to 236 KiB of freed pieces for each thread: these fill over an hour, and nothing trims them."""


class Soak:
    """A server for each transport, and for each a lasting client of each style and one that is killed over and over."""

    def __init__(self, ends: Ends, seed: int) -> None:
        self._ends = ends
        self._chance = random.Random(seed)
        self._servers = {transport: ends.begin("server", "-") for transport in TRANSPORTS}
        self._addresses = {
            name: ends.listen(server, name, options={}) for name, server in self._servers.items()
        }
        self._clients = {
            (style, transport): ends.begin("client", style) for style in STYLES for transport in TRANSPORTS
        }
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.memory: dict[str, list[int]] = {}

    def round(self, seconds: float) -> None:
        """Load for so long, then a rest in which the memory is measured."""
        threads = [
            threading.Thread(target=self._load, args=(*place, client, seconds, self._chance.random()))
            for place, client in self._clients.items()
        ]
        threads += [
            threading.Thread(target=self._kill_some, args=(transport, seconds, self._chance.random()))
            for transport in TRANSPORTS
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        named = {f"server {name}": server for name, server in self._servers.items()}
        named |= {f"client {style} {name}": client for (style, name), client in self._clients.items()}
        for name, process in named.items():
            said = process.ask(do="rest")
            if said["left"]:
                self.wrong.append(f"{name} is left with {said['left']}")
            self.memory.setdefault(name, []).append(said["own_bytes"])

    def growth(self) -> dict[str, float]:
        """Of each process, as a part of what it had after the warm-up."""
        found = {}
        for name, samples in self.memory.items():
            warm = samples[min(WARM_UP, len(samples) - 1) :]
            first, last = statistics.median(warm[:COMPARED]), statistics.median(warm[-COMPARED:])
            found[name] = last / first - 1.0
        return found

    def _load(self, style: str, transport: str, client: Process, seconds: float, seed: float) -> None:
        """Clients one after the other, each with some callers."""
        chance, end = random.Random(seed), time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                said = self._told_to_load(client, transport, min(left, chance.uniform(0.2, 3.0)), chance)
            except (OSError, EOFError, AssertionError) as error:
                self.wrong.append(f"client {style} {transport} broke: {error!r}")
                return
            self.done.update(said["done"])
            self.wrong += [f"client {style} {transport}: {problem}" for problem in said["wrong"]]

    def _told_to_load(
        self, client: Process, transport: str, seconds: float, chance: random.Random
    ) -> dict[str, Any]:
        address, seed = self._addresses[transport], chance.randrange(1 << 30)
        return client.ask(do="load", address=address, seconds=seconds, seed=seed)

    def _kill_some(self, transport: str, seconds: float, seed: float) -> None:
        """Client processes that die amid their load."""
        chance, end = random.Random(seed), time.monotonic() + seconds
        while time.monotonic() < end:
            client = self._ends.begin("client", chance.choice(STYLES))
            client.line.send(
                do="load", address=self._addresses[transport], seconds=60.0, seed=chance.randrange(1 << 30)
            )
            time.sleep(chance.uniform(*MORTAL_SECONDS))
            client.kill()
            self.done["clients killed"] += 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long (60)")
    parser.add_argument("--seed", type=int, default=1, help="which load (1)")
    given = parser.parse_args(arguments)
    ends = Ends(NO_THREAD_CACHES)
    try:
        soak = Soak(ends, given.seed)
        for number in range(ROUNDS):
            soak.round(60 * given.minutes / ROUNDS)
            shown = ", ".join(
                f"{name} {samples[-1] / (1 << 20):.2f} MiB" for name, samples in soak.memory.items()
            )
            print(f"round {number + 1} of {ROUNDS}: {sum(soak.done.values())} done; {shown}", flush=True)
            if soak.wrong:
                break
    finally:
        ends.close()
    print("soak: " + ", ".join(f"{count} {what}" for what, count in sorted(soak.done.items())))
    growth = soak.growth()
    for name, grown in growth.items():
        print(f"soak: memory of {name}: {100 * grown:+.2f} %")
    for problem in soak.wrong:
        print(f"FAILED {problem}")
    grew = [name for name, grown in growth.items() if grown > GROWTH_MAX]
    for name in grew:
        print(f"FAILED the memory of {name} grew by more than {100 * GROWTH_MAX:.0f} %")
    return 1 if soak.wrong or grew else 0


if __name__ == "__main__":
    sys.exit(main())
