"""Traces of calls between two machines, which have a clock each. Used by two_hosts.py."""

import sys
from pathlib import Path

# The modules of the tests import each other by name.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "helpers"))

from lost_peer import connected
from traced_service import Traced
from tracing_checks import assert_nested, assert_no_gap, names

import rrpc

OWN = "tcp://127.0.0.1:7472"


def serve(address: str) -> rrpc.Server:
    return rrpc.serve(Traced(), listen=[address, OWN])


def trace(address: str) -> None:
    """Calls the server there, and holds the traces to what is true of each."""
    with connected(address) as client, rrpc.trace() as trace:
        assert client.call("Traced.add", 1) == 2
        assert len(list(rrpc.open_stream(client, "Traced.count", 5, 10))) == 5
        assert client.call("Traced.by_way_of", [OWN], 2) == 2
    print(trace, flush=True)
    for call in trace.all_calls():
        assert_no_gap(call)
        assert "handler" in names(call), names(call)
    here = trace.calls[0].client.host
    for call in trace.calls:
        assert call.estimated
        assert call.server is not None
        assert call.server.host != here
    *_, outer = trace.calls
    handler = next(phase for phase in outer.phases if phase.name == "handler")
    assert len(outer.children) == 2
    for child in outer.children:
        assert child.client == outer.server
        assert not child.estimated  # its two ends are one process
        assert handler.begin_ns <= child.begin_ns < child.end_ns <= handler.end_ns
    assert_nested(trace.events())
    print("traces over two hosts hold", flush=True)
