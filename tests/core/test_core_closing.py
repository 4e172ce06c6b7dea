"""One thread ends what others are using; and a process ends that has threads in the core."""

from pathlib import Path

import closing_races
import pytest
from processes import run, run_python

RACES = Path(closing_races.__file__)
# Threads that nobody waits for come back from the core when there is hardly an interpreter left.
LEFT_IN_NEXT = """
import threading
from rrpc import _core
from rrpc._options import merged
server = _core.Server(merged({}))
for _ in range(16):
    threading.Thread(target=server.next, daemon=True).start()
server.stop()
print("end")
"""


@pytest.mark.parametrize("what", closing_races.USES)
def test_a_client_closes_amid_calls(what: str) -> None:
    assert run(RACES, what).stdout == "end\n"


@pytest.mark.slow
def test_daemon_threads_come_back_after_the_end() -> None:
    for _ in range(6):
        done = run_python(LEFT_IN_NEXT)
        assert (done.stdout, done.stderr) == ("end\n", "")
