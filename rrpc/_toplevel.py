"""The functions of the package itself: counters, traces, transports, adapters, the version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _core
from .codec import copies

if TYPE_CHECKING:
    from .tracing import Trace


def stats() -> dict[str, int]:
    """Returns counters of what this process has moved and copied since it started.

    Besides the core's counters there are Python's. ``packs`` and ``bytes_packed`` count arrays that weren't
    contiguous and were packed before sending. ``unpacks`` and ``bytes_unpacked`` count large bytes,
    bytearrays and array.arrays that were copied out of the landing memory, and arrays that JAX copied.
    ``device_copies`` and ``bytes_from_devices`` count tensors (see ``set_device_tensors``). ``bytes_copied``
    is the sum of the core's copies and these.
    """
    counts = _core.stats()
    ours = copies()
    copied = ours["bytes_packed"] + ours["bytes_unpacked"] + ours["bytes_from_devices"]
    return counts | ours | {"bytes_copied": counts.get("bytes_copied", 0) + copied}


def trace() -> Trace:
    """Collects the calls made in a ``with`` statement, with what each did when, at both ends.

    ``print(trace)`` shows them, ``trace.save("calls.json")`` writes what https://ui.perfetto.dev opens.
    """
    from .tracing import Trace

    return Trace()


def transports() -> dict[str, str]:
    """The address schemes: "" for one that can be used here, else the reason why it can't."""
    return _core.transports()


def adapters() -> list[dict[str, str]]:
    """The InfiniBand, RoCE and iWARP adapters of this machine: an entry for each port, as ``rrpc-info`` shows it.

    One that can't be used has the reason under ``why_not``. Empty too where ``transports()["verbs"]`` has a reason.
    """
    return _core.adapters()


def version() -> str:
    """Returns the installed version.

    It is read from the name of the metadata's folder: importlib.metadata costs more than all else here.
    """
    import os
    import sys

    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:  # a zip file, or not there
            continue
        for name in names:
            if name.startswith("rrpc_rdma-") and name.endswith(".dist-info"):
                return name[len("rrpc_rdma-") : -len(".dist-info")]
    return "0+uninstalled"  # a checkout, built in place
