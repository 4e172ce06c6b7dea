"""The tests that run over verbs too, in the virtual machine, where Python is some 25 times slower than outside: by
module the adapters, and words of which a test's name has one. They show Python's part of each kind of call over
adapters: registered memory, one-sided reads and writes, pieces of arrays. The core's part is shown there by its own
programs (tests/vm/guest/core.sh)."""

from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Suite:
    transports: tuple[str, ...]
    words: tuple[str, ...]

    def has(self, name: str, transport: str) -> bool:
        return transport in self.transports and any(word in name for word in self.words)


def over(transports: str, *lines: str) -> Suite:
    return Suite(tuple(transports.split()), tuple(" ".join(lines).split()))


SUITES: dict[str, tuple[Suite, ...]] = {
    "test_aio_client": (over("rxe", "calls_and_their_results[ arrays_go_both_ways loses_no_call"),),
    "test_aio_streams": (over("rxe", "a_stream_of_results[ test_arrays["),),
    "test_bulk": (
        over(
            "rxe siw",
            "one_copy one_registration memory_goes_back in_flight_together born_in_registered nested_and_many",
            "out_takes_the_result out_may_be_the_argument results_outlive hundred_mebibytes more_buffers",
        ),
        over("rxe", "slots_of_other_sizes"),
    ),
    "test_callbacks": (over("rxe", "a_handler_calls_back streams_of_the_caller"),),
    "test_calls": (
        over("rxe siw rxe-socket", "transport_is around_the_size test_cancel"),
        over("rxe", "by_position ways_of_polling least_size reaches_the_caller close_wakes"),
    ),
    "test_cancellation": (over("rxe siw", "reads_under_way_stop not_exposed_any_more"),),
    "test_channels": (over("rxe", "a_restarted_server"),),
    "test_client_interceptors": (over("rxe", "arrays_pass_through[rxe-blocking"),),
    "test_context": (over("rxe", "test_a_call[ the_caller_goes"),),
    "test_deadlines": (
        over("rxe", "a_lease_ends is_fetched stopped_server backlog_is_full finishes_its_handshake"),
    ),
    "test_stream_limits": (over("rxe", "is_killed[rxe]"),),
    "test_streams": (
        over("rxe siw", "passed_by_descriptor no_more_copies"),
        over("rxe", "a_stream_of_results a_stream_of_arguments streams_both_ways a_deadline"),
    ),
    "test_strided": (
        over("rxe siw", "results_and_out each_piece memory_of_the_array"),
        over("siw", "arrive_without_a_copy"),
    ),
}


def _only_there(path: Path) -> bool:
    return Path(__file__).parent / "vm" in path.parents


def may_run_over_verbs(path: Path, function: str) -> bool:
    """Whether any of the function's tests may: to make them all takes the guest half a minute."""
    return _only_there(path) or any(
        word.partition("[")[0] in function for suite in SUITES.get(path.stem, ()) for word in suite.words
    )


def runs_over_verbs(item: pytest.Item) -> bool:
    if _only_there(item.path):
        return True
    if item.get_closest_marker("slow") or "uvloop" in item.name:
        return False
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    transport = parameters.get("transport", parameters.get("scheme"))
    return transport is not None and any(
        suite.has(item.name, transport) for suite in SUITES.get(item.path.stem, ())
    )
