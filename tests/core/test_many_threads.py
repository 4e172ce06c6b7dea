"""Threads use the same clients, futures, streams and servers at once; and the extension needs no GIL."""

import sysconfig
from pathlib import Path

import pytest
import thread_races
from processes import run, run_python

RACES = Path(thread_races.__file__)
WITHOUT_GIL = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
# Where an extension doesn't declare that it needs no GIL, the interpreter switches it on at the import, and warns.
IMPORTS = """
import pkgutil, sys
import rrpc, rrpc.aio, rrpc.interceptors, rrpc.std, rrpc.tracing
print(getattr(sys, "_is_gil_enabled", lambda: True)())
print(*sorted(name for name, module in sys.modules.items()
              if name.startswith("rrpc") and (getattr(module, "__file__", None) or "").endswith(".so")))
"""


@pytest.mark.parametrize("case", thread_races.CASES)
def test_threads_at_once(case: str) -> None:
    done = run(RACES, case, timeout=120.0)
    assert (done.stdout, done.stderr) == ("end\n", "")


def test_importing_needs_no_gil() -> None:
    """On interpreters without the GIL nothing of rrpc's switches it on; others have it all the same."""
    enabled, *extensions = run_python(IMPORTS, PYTHON_GIL="").stdout.split()
    assert extensions == ["rrpc._core"]
    assert enabled == str(not WITHOUT_GIL)
