"""What runs over verbs, where emulation makes each test slow: by module the adapters and, unless it is all that has a
transport, the words of which a test's name has one."""

from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Suite:
    transports: tuple[str, ...]
    words: tuple[str, ...] = ("",)
    without: tuple[str, ...] = ("uvloop",)

    def has(self, name: str, transport: str) -> bool:
        return (
            transport in self.transports
            and any(word in name for word in self.words)
            and not any(word in name for word in self.without)
        )


def words(*lines: str) -> tuple[str, ...]:
    return tuple(" ".join(lines).split())


ONE = Suite(("rxe",))  # that a call over the other adapter is like one over this is shown by the others
BOTH = Suite(("rxe", "siw"))  # memory, and what goes on by itself
# What a value becomes on its way is the codec's part, which the adapter has none in.
CALLS = (
    Suite(("rxe",), without=("values_come_back",)),
    Suite(
        ("siw", "rxe-socket"),
        words(
            "transport_is around_the_size ways_of_polling least_size thousands threads many_clients test_cancel",
            "close outlive",
        ),
    ),
)
BULK = (
    Suite(("rxe",), without=words("every_dtype structured object_arrays")),
    Suite(("siw",), without=words("every_dtype structured object_arrays every_view does_not_fit")),
)
STREAMS = (
    ONE,
    Suite(("siw",), words("stream_of both_ways at_once arrays copies leaving cancelled deadline")),
)
ASYNCIO = Suite(
    ("rxe",),
    words(
        "calls_and_their_results arrays metadata cancelled_task given_up_cancels dies_cancels stream_of_results",
        "streams_of_arguments leaving_a_stream both_kinds loses_no_call",
    ),
)
INTERCEPTORS = Suite(
    ("rxe",),
    words(
        "sees_and_changes arrays errors_of_handlers test_errors metadata answer call_again cancelled stamps",
        "runs_once items_of test_items streams_end they_end dont_begin stops_ends executed",
    ),
    ("uvloop", "futures"),
)
SUITES: dict[str, Suite | tuple[Suite, ...]] = {
    "test_aio_channels": ASYNCIO,
    "test_aio_client": ASYNCIO,
    "test_aio_server": ASYNCIO,
    "test_aio_stream_interceptors": INTERCEPTORS,
    "test_aio_streams": ASYNCIO,
    "test_bulk": BULK,
    "test_callbacks": ONE,
    "test_calls": CALLS,
    "test_cancellation": BOTH,
    "test_channels": ONE,
    "test_client_interceptors": INTERCEPTORS,
    "test_context": ONE,
    "test_core_callbacks": ONE,
    "test_core_streams": BOTH,
    "test_deadlines": ONE,
    "test_declared_errors": ONE,
    "test_futures": ONE,
    "test_hops": Suite(("rxe",), without=("_later", "its_way[rxe-taken]")),
    "test_retries": Suite(("rxe",), without=("kills", "budget")),
    "test_server_interceptors": INTERCEPTORS,
    "test_several_addresses": Suite(("rxe",), without=("least_outstanding", "no_call[rxe-pick_first]")),
    "test_stream_interceptors": INTERCEPTORS,
    "test_stream_limits": Suite(("rxe",), without=("killed[rxe-15]",)),
    "test_streams": STREAMS,
    "test_strided": BOTH,
    "test_tracing_styles": Suite(("rxe",), without=("uvloop", "futures")),
}


def runs_over_verbs(item: pytest.Item) -> bool:
    if Path(__file__).parent / "vm" in item.path.parents:
        return True
    if item.get_closest_marker("slow"):
        return False
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    transport = parameters.get("transport", parameters.get("scheme"))
    suites = SUITES.get(item.path.stem, ())
    suites = (suites,) if isinstance(suites, Suite) else suites
    return transport is not None and any(suite.has(item.name, transport) for suite in suites)
