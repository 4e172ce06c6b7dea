"""One rrpc-serve for all tests, on shm and tcp, and clients of it. Helpers are those of the tests of rrpc itself."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
# A server that imports all of these libraries takes half a minute on a busy machine.
os.environ.setdefault("RRPC_TEST_TIME_SCALE", "4")
sys.path.insert(0, str(HERE.parents[2] / "tests" / "helpers"))

import frameworks_service  # noqa: E402
from lab import address_to_listen_on  # noqa: E402
from processes import Served, ServeFactory  # noqa: E402
from two_versions import generate  # noqa: E402

TRANSPORTS = ("shm", "tcp")
TENSORS = generate(frameworks_service.Tensors)
TABLES = generate(frameworks_service.Tables)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    factory = ServeFactory(tmp_path_factory.mktemp("served"), address_to_listen_on, fork=False)
    arguments = ["frameworks_service:Tensors", "frameworks_service:Tables"]
    for transport in TRANSPORTS:
        arguments += ["--listen", address_to_listen_on(transport)]
    yield factory.start(arguments, len(TRANSPORTS), folder=HERE)
    factory.close()


@pytest.fixture(params=TRANSPORTS)
def address(request: pytest.FixtureRequest, server: Served) -> str:
    return server.addresses[TRANSPORTS.index(request.param)]


@pytest.fixture
def tensors(address: str) -> Iterator[Any]:
    with TENSORS.TensorsClient(address, timeout=30.0) as client:
        yield client


@pytest.fixture
def tables(address: str) -> Iterator[Any]:
    with TABLES.TablesClient(address, timeout=30.0) as client:
        yield client
