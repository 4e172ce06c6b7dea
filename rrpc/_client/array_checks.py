"""A debug mode that finds arrays which are changed while a peer may read them."""

# `_watch` runs in the thread that sends, whose stack it looks at.

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable
from types import FrameType

from rrpc import _core
from rrpc._call.context import Context, current

from .stubs import RemoteMethod

_HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep  # of the package
_LIBRARY = os.path.dirname(os.__file__) + os.sep


def check_arrays(on: bool = True) -> None:
    """Finds large arguments, results and items that are changed before their peer has read them.

    rrpc sends large arrays from where they are: what is changed meanwhile arrives with old and new values mixed. With
    this mode each is summed when it is sent and when its peer is done with it. If the sums differ, the logger
    ``rrpc.arrays`` gets an error that says who sent it, and ``arrays_changed`` of ``rrpc.stats`` counts it. What
    is sent then costs two more readings; it is for tests. In the environment: ``RRPC_CHECK_ARRAYS=1``.

    ``rrpc.snapshot`` makes what can be sent while the original changes.
    """
    _core.watch_buffers(_watch if on else None)


def _watch(nbytes: int) -> Callable[[], None]:
    return functools.partial(_changed, nbytes, _sender())


def _changed(nbytes: int, sender: str) -> None:
    logging.getLogger("rrpc.arrays").error(
        "%d bytes that %s sent were changed before the peer had read them: it may have old and new values mixed. "
        "Send rrpc.snapshot(array), or change it when the call has ended",
        nbytes,
        sender,
    )


def _sender() -> str:
    """The line that sends, or the method whose result it is."""
    frame = sys._getframe()
    while frame.f_back is not None and _is_ours(frame):
        frame = frame.f_back
    name = frame.f_code.co_filename
    context = current()
    if isinstance(context, Context) and (name.startswith((_HERE, _LIBRARY)) and "site-packages" not in name):
        return f"{context.method}()"
    return f"{name}:{frame.f_lineno}"


def _is_ours(frame: FrameType) -> bool:
    """rrpc's, or that of a method of a generated client."""
    return frame.f_code.co_filename.startswith(_HERE) or isinstance(frame.f_locals.get("self"), RemoteMethod)
