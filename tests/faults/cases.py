"""The table of faults: what is done, at which step of the protocol, over which transport, and what must follow."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from .gate import CLIENT, SERVER

STYLES = ("blocking", "asyncio")


@dataclass(frozen=True)
class Step:
    """Where in the protocol a fault comes: at a message of one of these names, while a client does ``op``."""

    op: str
    stops: tuple[tuple[str, str], ...]
    """(who sends it, the message's name): one of them is drawn."""
    times: int = 1
    """The message is any of so many."""


STEPS = {
    "HELLO": Step("echo", ((CLIENT, "HELLO"), (SERVER, "HELLO"))),
    "REQUEST": Step("echo", ((CLIENT, "REQUEST"),), 3),
    "READ": Step(
        "array", ((SERVER, "READ"), (CLIENT, "READ_DATA"), (CLIENT, "READ"), (SERVER, "READ_DATA")), 2
    ),
    "REPLY": Step("echo", ((SERVER, "REPLY"),), 3),
    "DONE": Step("array", ((CLIENT, "DONE"),), 2),
    "CANCEL": Step("cancel", ((CLIENT, "CANCEL"), (SERVER, "CANCEL_ACK"))),
    "ITEM": Step("items", ((SERVER, "ITEM"),), 3),
    "ITEM sent": Step("send", ((CLIENT, "ITEM"),), 3),
    "WINDOW": Step("items", ((CLIENT, "WINDOW"),), 3),
    "WINDOW sent": Step("send", ((SERVER, "WINDOW"),), 3),
    "GOAWAY": Step("stay", ((SERVER, "GOAWAY"), (CLIENT, "GOAWAY_ACK"))),
}
# Over shm a READ is a copy that its reader makes by itself: the fault comes right after the message that leads to it.
SHM_READS = Step("large", ((CLIENT, "REQUEST"), (SERVER, "REPLY")), 2)

# Whom the steps' messages can be stopped for: see wires in lane.py. Adapters have no man in the middle, so that only
# killing and stopping is left there, at any moment.
TRANSPORTS = ("shm", "tcp")

ACTIONS = (
    "kill server",
    "kill client",
    "stop server",
    "stop client",
    "cut",
    "reset",
    "silence",
    "delay",
    "delay past the deadline",
    "corrupt header",
    "corrupt bits",
)
NO_RESET = ("shm",)  # Unix sockets have none

QUIET = {"keepalive_interval": 1.0, "keepalive_timeout": 1.0}
GIVEN_UP_SECONDS = 2.0  # after so much silence a peer is given up, with the options above
CONNECTION_ENDS = ("kill server", "kill client", "stop server", "stop client", "cut", "reset", "silence")
SILENT = ("stop server", "stop client", "silence")
# The errors that a wait may raise: class, and words of the message that name what happened. None: it has its result.
_ENDED = r"peer closed|peer lost|refused"
_SILENT = r"has been silent for|handshake was not finished in time|no answer in time|the server was stopped"
_DAMAGED = r"magic|unknown (message|frame) type|announces a body|epoch|before HELLO|peer closed"
ERRORS = {
    "kill server": f"Unavailable: .*({_ENDED})",
    "stop server": f"Unavailable: .*({_SILENT}|{_ENDED})",
    "stop client": f"Unavailable: .*({_SILENT}|{_ENDED})",
    "cut": f"Unavailable: .*({_ENDED})",
    "reset": f"Unavailable: .*({_ENDED})",
    "silence": f"Unavailable: .*({_SILENT}|{_ENDED})",
    "delay": None,
    "delay past the deadline": None,
    "corrupt header": f"(ProtocolError|Unavailable): .*({_DAMAGED})",
    "corrupt bits": "",  # may make another message of it that is as good: any error, or another result
}
PASSED = "DeadlineExceeded: .*(was not done within its timeout|deadline (has )?passed|in time)"
"""A deadline that comes first is an answer too."""


@dataclass(frozen=True)
class Case:
    """One fault; ``seed`` draws what the others leave open."""

    step: str
    action: str
    transport: str
    style: str
    seed: int

    def __str__(self) -> str:
        return "/".join((self.step, self.action, self.transport, self.style, str(self.seed)))

    @classmethod
    def parse(cls, text: str) -> "Case":
        step, action, transport, style, seed = text.split("/")
        return cls(step, action, transport, style, int(seed))

    def chance(self) -> random.Random:
        """Draws the same for the same case."""
        return random.Random(str(self))

    def at(self) -> Step:
        return SHM_READS if self.step == "READ" and self.transport == "shm" else STEPS[self.step]


def kinds(transports: tuple[str, ...]) -> list[tuple[str, str, str, str]]:
    """All combinations that there are."""
    every = itertools.product(STEPS, ACTIONS, transports, STYLES)
    return [kind for kind in every if not (kind[1] == "reset" and kind[2] in NO_RESET)]


def drawn(count: int, seed: int, transports: tuple[str, ...] = TRANSPORTS) -> Iterator[Case]:
    """So many cases: every kind as often as every other, give or take one, in any order."""
    chance = random.Random(seed)
    found: list[Case] = []
    while len(found) < count:
        shuffled = kinds(transports)
        chance.shuffle(shuffled)
        found += [Case(*kind, chance.randrange(1_000_000)) for kind in shuffled]
    yield from found[:count]
