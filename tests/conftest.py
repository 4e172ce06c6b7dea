"""Fixtures for tests that run real processes, and the rule that CI skips nothing."""

import os
import re
import shutil
import signal
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from aio import aio_address, aio_server, in_loop
from flow import flow, flow_address, flow_server
from impostor import impostor
from lab import TRANSPORTS, VERBS, address_to_listen_on, lab, lab_address, lab_server
from over_verbs import may_run_over_verbs, runs_over_verbs
from processes import ServeFactory
from rrpc_call import call_server, rrpc_call
from styles import shop, shop_address, style
from tracing_checks import traced, traced_servers

__all__ = [
    "aio_address",
    "aio_server",
    "call_server",
    "flow",
    "flow_address",
    "flow_server",
    "impostor",
    "in_loop",
    "lab",
    "lab_address",
    "lab_server",
    "rrpc_call",
    "shop",
    "shop_address",
    "style",
    "traced",
    "traced_servers",
]  # fixtures from modules beside

# A shell has its background jobs ignore interrupts, and what they start inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

WITHOUT_GIL = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
if WITHOUT_GIL:  # what the tests start runs without it too, even where a package of others asks for it
    os.environ["PYTHON_GIL"] = "0"

# Those need adapters, which tools/vm/test.sh gives them.
IN_VM = bool(os.environ.get("RRPC_IN_VM"))
collect_ignore_glob = [] if IN_VM else ["vm/*"]
OVER_VERBS = bool(set(TRANSPORTS) & set(VERBS))
if not IN_VM:  # nothing that runs there uses hypothesis, which takes seconds to import
    import made  # noqa: F401


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    """What an address is of: a scheme, or a name in lab.VERBS; `new_address(transport)` gives one to listen on."""
    return str(request.param)


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A directory whose name is short enough for a Unix socket in it (107 bytes in all)."""
    path = Path(tempfile.mkdtemp(prefix="rrpc-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads take turns after moments, so that another comes between any two steps."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


@pytest.fixture
def new_address(short_tmp: Path) -> Callable[[str], str]:
    """Gives an address of a transport to listen on that nobody else has."""
    count = iter(range(1_000_000))

    def make(transport: str) -> str:
        return address_to_listen_on(transport, f"{short_tmp}/{next(count)}.sock")

    return make


@pytest.fixture
def address(transport: str, new_address: Callable[[str], str]) -> str:
    """An address to listen on, once for each transport."""
    return new_address(transport)


# Where rrpc-serve has an interpreter of its own, as its start, its end or what it holds is looked at.
AS_USERS_START_IT = (
    "test_serve",
    "test_serve_processes",
    "test_serve_reload",
    "test_leaks",
    "test_descriptors",
    "test_guide",
)


@pytest.fixture
def serve(
    tmp_path: Path, new_address: Callable[[str], str], request: pytest.FixtureRequest
) -> Iterator[ServeFactory]:
    """``serve(module_text, "Echo")`` starts rrpc-serve and waits until it listens; see processes.Served."""
    factory = ServeFactory(tmp_path, new_address, request.path.stem not in AS_USERS_START_IT)
    yield factory
    factory.close()


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str) -> list[pytest.Item] | None:
    if OVER_VERBS and name.startswith("test_") and not may_run_over_verbs(collector.path, name):
        return []
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Over verbs only what a transport has a part in; over rrpc://, which is shm on one host, a few suites."""
    wanted = runs_over_verbs if OVER_VERBS else _over_rrpc
    left_out = [item for item in items if not wanted(item)]
    if left_out:
        left = set(map(id, left_out))
        items[:] = [item for item in items if id(item) not in left]
        config.hook.pytest_deselected(items=left_out)


RRPC_SUITES = (
    "test_calls",
    "test_bulk",
    "test_streams",
    "test_aio_client",
    "test_context",
    "test_faults",
    "test_exit",
)


def _over_rrpc(item: pytest.Item) -> bool:
    parameters = getattr(item, "callspec", None)
    over = None if parameters is None else parameters.params.get("transport")
    return over != "rrpc" or item.path.stem in RRPC_SUITES


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skips tests of packages that tools/free_threaded.txt leaves out, on interpreters without the GIL."""
    report = yield
    lacking = re.search(r"ModuleNotFoundError: (No module named '\w+)", str(report.longrepr))
    if WITHOUT_GIL and report.failed and lacking:
        report.outcome, report.longrepr = "skipped", (report.nodeid, 0, lacking[1] + "'")
    return report


_skipped: list[tuple[str, str]] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        _skipped.append((report.nodeid, _reason(report)))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped:
        _skipped.append((report.nodeid, _reason(report)))


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    return str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)


def _skips_fail() -> bool:
    return os.environ.get("CI") == "true" and bool(_skipped)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    # What this process has counted is written now: a worker that takes long to end is killed.
    counted = getattr(sys.modules.get("coverage"), "Coverage", None)
    if counted is not None and (current := counted.current()) is not None:
        current.save()
    if _skips_fail() and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _skips_fail():
        terminalreporter.section("skipped, which CI counts as failed", red=True)
        for nodeid, reason in _skipped:
            terminalreporter.line(f"FAILED {nodeid} - {reason}", red=True)
