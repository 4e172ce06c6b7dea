"""The options that clients and servers share."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from time import monotonic
from typing import Any

from rrpc import _core, _numa
from rrpc.errors import InvalidArgument

_SHORTEST_TIMEOUT_S = 1e-6


def merged(given: dict[str, Any]) -> dict[str, Any]:
    """The core's options with ``given`` ones in their places; TypeError for a name that isn't one."""
    check_names(given)
    merged = _core.default_options() | given
    return merged | {"numa_node": _numa_place(merged["numa_node"])}


def _numa_place(node: Any) -> tuple[int, list[int]] | None:
    """The number and the processors of the node that the option ``numa_node`` names, as the core takes them."""
    if node == _numa.AUTO:
        node = _numa.adapters_node()
    if node is None:
        return None
    if not isinstance(node, int) or isinstance(node, bool):
        raise InvalidArgument(f"numa_node must be a node's number, 'auto' or None, not {node!r:.60}")
    try:
        return node, sorted(_numa.cpus_of_node(node))
    except ValueError as error:
        raise InvalidArgument(f"numa_node {node}: {error}") from None


def check_names(given: Iterable[str], *constructors: Any) -> None:
    """TypeError for a name that is no option of the core and no keyword of the constructors, with the nearest one."""
    known = {*_core.default_options()}.union(*(made.__kwdefaults__ or () for made in constructors))
    for name in given:
        if name not in known:
            raise TypeError(f"there is no option {name!r}{did_you_mean(name, sorted(known))}")


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """``; did you mean ...?`` where one of ``names`` is near, else what there is."""
    import difflib

    names = list(names)
    near = [known for known in names if known.rpartition(".")[2] == name]
    near = near or difflib.get_close_matches(name, names, 1)
    return f"; did you mean {near[0]}?" if near else f"; there is {', '.join(names) or 'none'}"


def suggestion(word: str, known: Iterable[str]) -> str:
    """``; did you mean ...?`` for a word that looks like a known one, else nothing."""
    import difflib

    close = difflib.get_close_matches(word, list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def seconds(timeout: float, name: str = "timeout") -> float:
    """Returns the timeout that a user gave, as a float; InvalidArgument if it isn't a number from 0 up.

    A timeout under a microsecond is 0: no call can be sent within it.
    """
    try:
        given = timeout + 0.0  # as floats: text and timedeltas can't be added
        if given >= _SHORTEST_TIMEOUT_S:
            return float(given)
        if given >= 0:
            return 0.0
    except (TypeError, ValueError, OverflowError):
        pass
    raise InvalidArgument(
        f"{name} must be a number of seconds from 0 up, or None for no limit, not {timeout!r:.60}"
    )


def grown(initial: float, multiplier: float, steps: int, most: float) -> float:
    """Returns ``initial * multiplier ** steps``, at most ``most``, for any numbers from 0 up."""
    if not initial:
        return 0.0
    try:
        return min(most, initial * float(multiplier) ** steps)
    except OverflowError:
        return most


def deadline_after(timeout: float | None) -> float | None:
    """Returns the time, by ``time.monotonic``, at which a timeout that begins now ends; None: never."""
    return None if timeout is None or timeout == inf else monotonic() + timeout


def time_until(deadline: float | None) -> float | None:
    """Returns the seconds until a deadline, 0 behind it; None: there is none."""
    return None if deadline is None else max(0.0, deadline - monotonic())
