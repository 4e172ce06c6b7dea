"""The tests that run over verbs too, in the virtual machine, where Python is some 25 times slower than outside: by
module the adapters, and words of which a test's name has one. They show Python's part of each kind of call over
adapters: registered memory, one-sided reads and writes, pieces of arrays. An adapter is named where only that one
shows something: Soft-RoCE has memory windows, Soft-iWARP reads into one element at a time, and `rxe-socket` differs
from `rxe` only in how connections are made. The core's part is shown there by its own programs
(tests/vm/guest/core.sh)."""

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
    "aio/test_aio_client": (over("rxe", "calls_and_their_results[ arrays_go_both_ways"),),
    "aio/test_aio_streams": (over("rxe", "test_arrays["),),
    "memory/test_bulk": (
        over(
            "rxe siw",
            "one_copy_for one_copy_into_out one_registration memory_goes_back in_flight_together",
            "born_in_registered out_takes_the_result results_outlive",
        ),
        over("rxe", "slots_of_other_sizes[rxe-512 out_may_be_the_argument nested_and_many"),
        over("siw", "more_buffers hundred_mebibytes"),
    ),
    "memory/test_borrowed_calls": (over("rxe", "of_both_kinds"),),
    "client/test_callbacks": (over("rxe", "a_handler_calls_back"),),
    "call/test_calls": (
        over("rxe siw rxe-socket", "transport_is"),
        over("rxe siw", "around_the_size test_cancel"),
        over("rxe", "polling[rxe-busy least_size"),
    ),
    "call/test_cancellation": (over("rxe siw", "reads_under_way_stop not_exposed_any_more"),),
    "call/test_context": (over("rxe", "the_caller_goes"),),
    "call/test_deadlines": (
        over("rxe", "a_lease_ends is_fetched stopped_server backlog_is_full finishes_its_handshake"),
    ),
    "codec/test_frames": (over("rxe siw", "frames_go_both_ways"),),
    "streams/test_streams": (
        over("rxe siw", "passed_by_descriptor"),
        over("rxe", "a_stream_of_results a_stream_of_arguments streams_both_ways"),
        over("siw", "no_more_copies"),
    ),
    "codec/test_strided": (
        over("rxe", "results_and_out[rxe-5 memory_of_the_array"),
        over(
            "siw",
            "results_and_out[siw-16 arrive_without_a_copy[siw-half arrive_without_a_copy[siw-registered",
        ),
        over("siw", "arrive_without_a_copy[siw-as each_piece"),
    ),
}


def _only_there(path: Path) -> bool:
    return Path(__file__).parent.parent / "vm" in path.parents


def _suites(path: Path) -> tuple[Suite, ...]:
    return SUITES.get(f"{path.parent.name}/{path.stem}", ())


def may_run_over_verbs(path: Path, function: str) -> bool:
    """Whether any of the function's tests may: to make them all takes the guest half a minute."""
    return _only_there(path) or any(
        word.partition("[")[0] in function for suite in _suites(path) for word in suite.words
    )


def runs_over_verbs(item: pytest.Item) -> bool:
    if _only_there(item.path):
        return True
    if item.get_closest_marker("slow") or "uvloop" in item.name:
        return False
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    transport = parameters.get("transport", parameters.get("scheme"))
    return transport is not None and any(suite.has(item.name, transport) for suite in _suites(item.path))
