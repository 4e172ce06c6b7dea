"""The table of faults: what is done, at which step of the protocol, over which transport, and what must follow."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from processes import TIME_SCALE

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


READS = ((SERVER, "READ"), (CLIENT, "READ_DATA"), (CLIENT, "READ"), (SERVER, "READ_DATA"))
STEPS = {
    "HELLO": Step("echo", ((CLIENT, "HELLO"), (SERVER, "HELLO"))),
    "REQUEST": Step("echo", ((CLIENT, "REQUEST"),), 3),
    "READ": Step("array", READS, 2),
    "PUSH": Step("array", ((CLIENT, "PUSH"), (SERVER, "PUSH")), 2),
    "REPLY": Step("echo", ((SERVER, "REPLY"),), 3),
    "DONE": Step("array", ((CLIENT, "DONE"),), 2),
    "CANCEL": Step("cancel", ((CLIENT, "CANCEL"), (SERVER, "CANCEL_ACK"))),
    "ITEM": Step("items", ((SERVER, "ITEM"),), 3),
    "ITEM sent": Step("send", ((CLIENT, "ITEM"),), 3),
    "WINDOW": Step("items", ((CLIENT, "WINDOW"),), 3),
    "WINDOW sent": Step("send", ((SERVER, "WINDOW"),), 3),
    "GOAWAY": Step("stay", ((SERVER, "GOAWAY"), (CLIENT, "GOAWAY_ACK"))),
}
READS_OF = {
    # A copy that its reader makes by itself: the fault comes right after the message that leads to it.
    "shm": Step("large", ((CLIENT, "REQUEST"), (SERVER, "REPLY")), 2),
    # What is smaller follows its message unasked.
    "tcp": Step("large", READS, 2),
}

TRANSPORTS = ("shm", "tcp")
ADAPTERS = ("rxe", "siw")
"""Transports of the virtual machine: see packet_wire.py."""

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
# Unix sockets have no RST. Nobody but the ends can end an adapter's connection in order, nor rxe's in any other way.
STALLS = ("rxe",)
"""Soft-RoCE may stop amid a retransmission, which a slow machine brings about, and never go on: keep-alive ends it."""
ONLY_OVER = {"PUSH": "tcp"}
IMPOSSIBLE = {("reset", "shm"), ("reset", "rxe"), ("cut", "rxe"), ("cut", "siw")}


def stretched(seconds: float) -> float:
    """So long on a usual machine, and longer in the virtual machine, where all takes longer."""
    return seconds * max(1.0, TIME_SCALE / 4)


QUIET = {"keepalive_interval": stretched(1.0), "keepalive_timeout": stretched(1.0)}
GIVEN_UP_SECONDS = stretched(2.0)  # after so much silence a peer is given up, with the options above
CONNECTION_ENDS = ("kill server", "kill client", "stop server", "stop client", "cut", "reset", "silence")
SILENT = ("stop server", "stop client", "silence")
# The errors that a wait may raise: class, and words of the message that name what happened. None: it has its result.
_ENDED = r"peer (\S+ )?closed|peer lost|refused"
_SILENT = (
    r"has been silent for|retries exceeded|took too long|handshake was not finished in time"
    r"|the server was stopped"
)
_DAMAGED = r"magic|unknown (message|frame) type|announces a body|epoch|before HELLO|peer (\S+ )?closed"
DAMAGED_READ = "Unavailable: .*(fetching|connection was lost|given up the queue pair)"
"""What an adapter makes of one: it says no more of it."""
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
PASSED = "DeadlineExceeded: .*(was not done within its timeout|deadline (has )?passed|in time|took too long)"
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
        own = READS_OF.get(self.transport) if self.step == "READ" else None
        return own or STEPS[self.step]


def kinds(transports: tuple[str, ...]) -> list[tuple[str, str, str, str]]:
    """All combinations that there are."""
    every = itertools.product(STEPS, ACTIONS, transports, STYLES)
    return [
        (step, action, transport, style)
        for step, action, transport, style in every
        if (action, transport) not in IMPOSSIBLE and ONLY_OVER.get(step, transport) == transport
    ]


def drawn(count: int, seed: int, transports: tuple[str, ...] = TRANSPORTS) -> Iterator[Case]:
    """So many cases: every kind as often as every other, give or take one, in any order."""
    chance = random.Random(seed)
    found: list[Case] = []
    while len(found) < count:
        shuffled = kinds(transports)
        chance.shuffle(shuffled)
        found += [Case(*kind, chance.randrange(1_000_000)) for kind in shuffled]
    yield from found[:count]
