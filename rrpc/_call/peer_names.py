"""Names the process at the other end of a connection for users."""

# Any thread may call this. It reads a small file of /proc, once in ten seconds for each peer.

from __future__ import annotations

import os
from functools import lru_cache
from time import monotonic

_LOCAL = "peer pid "  # so begins the core's text for a peer on this host; otherwise it is an address
_REMEMBERED_S = 10.0  # a process may execute another program, and its number goes to another process later
_PROGRAM_CHARS = 60
# The peer chooses its command line, so only this much of it is read.
_CMDLINE_BYTES = 4096
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def peer_name(text: str) -> str:
    """Returns ``pid 4711 uid 1000 (train.py)`` for a peer on this host, and the address of any other.

    ``text`` is the core's. The program's name is what that process says, left out where it can't be read.
    """
    return _local(text, int(monotonic() / _REMEMBERED_S)) if text.startswith(_LOCAL) else text


@lru_cache(maxsize=1024)
def _local(text: str, period: int) -> str:
    program = _program(text[len(_LOCAL) :].partition(" ")[0])
    return text.removeprefix("peer ") + (f" ({program})" if program else "")


def _program(pid: str) -> str:
    """The script or the module of an interpreter, the file's name of any other program."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(_CMDLINE_BYTES).decode(errors="replace").split("\0")
    except OSError:  # another user's, of another namespace, or gone
        return ""
    name = os.path.basename(words[0])
    if name.startswith("python"):
        name = _python_program(words[1:]) or name
    # The name goes to logs and terminals, which get no control characters of another process's choice.
    return "".join(char if char.isprintable() else "?" for char in name[:_PROGRAM_CHARS])


def _python_program(words: list[str]) -> str:
    """Returns the script or module in Python's command line, or "" if it has neither."""
    rest = iter(words)
    for word in rest:
        if word == "-m":
            return next(rest, "")
        if word == "-c":
            return ""
        if word in _WITH_VALUE:
            next(rest, "")
        elif not word.startswith("-"):
            return os.path.basename(word)
    return ""
