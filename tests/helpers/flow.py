"""One server of flow_service for many tests of streams, its generated client, and helpers around them."""

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from flow_service import Flow
from lab import TRANSIENT, TRANSPORTS, LabServer, address_to_listen_on
from processes import ServeFactory, eventually, patience

import rrpc
from rrpc._interface.decorators import interface_of
from rrpc.idl.emit_python import Unit, emit

FLOW = (Path(__file__).parent / "flow_service.py").read_text()


def generated(service: type, name: str) -> Any:
    """The module with its clients."""
    interface = interface_of(service)
    assert interface is not None
    module = types.ModuleType(name)
    sys.modules[name] = module  # where dataclasses and annotations look names up
    text = emit(Unit(f"{service.__module__}:{service.__name__}", [interface]), "0.1.0")
    exec(compile(text, f"{name}.py", "exec"), module.__dict__)
    return module


flow_rpc = generated(Flow, "flow_rpc")


@pytest.fixture(scope="session")
def flow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    """Shared by all tests that leave it as it was."""
    folder = tmp_path_factory.mktemp("flow")
    factory = ServeFactory(folder, address_to_listen_on)
    yield LabServer(factory(FLOW, "Flow", listen=TRANSPORTS, module="flow_service"))
    factory.close()


@pytest.fixture
def flow_address(flow_server: LabServer, transport: str) -> str:
    """Of the shared server, once for each transport."""
    return flow_server.address(transport)


@pytest.fixture
def flow(flow_address: str) -> Iterator[Any]:
    """A generated client of the shared server, once for each transport."""
    with flow_rpc.FlowClient(flow_address, timeout=patience(30)) as client:
        client.hold()
        yield client


def held(client: Any) -> dict[str, int]:
    """What streams hold at both ends: those begun and not closed, memory in use or open to the peer."""
    counts = client.counts()
    held = {"streams": counts["begun"] - counts["closed"]}
    for where, stats in (("here", rrpc.stats()), ("there", client.usage())):
        held |= {f"{name} {where}": stats[name] for name in TRANSIENT}
    return held


@contextmanager
def nothing_left(client: Any) -> Iterator[None]:
    """Both ends hold no more than before, soon after the block."""
    before = held(client)
    yield
    eventually(lambda: all(n <= before[name] for name, n in held(client).items()), what="nothing to be left")
