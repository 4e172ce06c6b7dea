"""Dask's ``Security`` over rrpc: TLS, and refusals."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import distributed
import numpy as np
import pytest
from dask_rrpc import Security
from distributed import Client, LocalCluster
from distributed.comm import connect, listen
from distributed.comm.core import FatalCommClosedError
from distributed.protocol import to_serialize
from distributed.utils_test import gen_test
from test_comm import ADDRESS, Pair

import rrpc

WAIT_SECONDS = 90.0
ROLES = ("scheduler", "worker", "client")


@pytest.fixture(scope="module")
def security() -> Security:
    made: Security = Security.temporary()
    return made


@pytest.fixture
def files(security: Security, tmp_path: Path) -> dict[str, str]:
    """Paths by rrpc's names."""
    paths = {"ca": tmp_path / "ca.pem", "cert": tmp_path / "own.pem", "key": tmp_path / "own.key"}
    paths["ca"].write_text(security.tls_ca_file)
    paths["cert"].write_text(security.tls_worker_cert)
    paths["key"].write_text(security.tls_worker_key)
    return {f"tls_{name}": str(path) for name, path in paths.items()}


@pytest.mark.parametrize("secure", [False, True])
@gen_test()
async def test_a_comm_says_what_protects_it(security: Security, secure: bool) -> None:
    array = np.arange(1 << 18)
    with dask.config.set({"distributed.comm.rrpc": {"transports": "tcp"}}):
        async with Pair(**security.get_connection_args("worker") if secure else {}) as (near, far):
            assert near.extra_info["security"].startswith("TLSv1.3" if secure else "none")
            await near.write({"x": to_serialize(array)})
            assert np.array_equal((await far.read())["x"], array)


@gen_test()
async def test_another_authority_is_refused_for_good(security: Security) -> None:
    listener = await listen(ADDRESS, print, **security.get_listen_args("scheduler"))
    try:
        stranger = Security.temporary().get_connection_args("worker")
        with pytest.raises(FatalCommClosedError, match="isn't signed by an authority"):
            await connect(listener.contact_address, **stranger)
        with pytest.raises(FatalCommClosedError, match="the peer speaks TLS"):
            await connect(listener.contact_address)
    finally:
        listener.stop()


WITHOUT_CERTIFICATES: list[Any] = [
    lambda: {"require_encryption": True},
    lambda: distributed.Security.temporary().get_connection_args("worker"),
]


@pytest.mark.parametrize("arguments", WITHOUT_CERTIFICATES)
@gen_test()
async def test_without_certificates_that_rrpc_could_use(arguments: Any) -> None:
    with pytest.raises(FatalCommClosedError, match=r"give a dask_rrpc\.Security"):
        await connect("rrpc://127.0.0.1:1", **arguments())
    with pytest.raises(FatalCommClosedError, match=r"give a dask_rrpc\.Security"):
        await listen(ADDRESS, print, **arguments())


@pytest.mark.parametrize("unset", [{}, {"tls-ca": None}, {"tls": False}])
@gen_test()
async def test_encryption_that_the_configuration_requires(unset: dict[str, Any]) -> None:
    required = dask.config.set({"distributed.comm.require-encryption": True, "distributed.comm.rrpc": unset})
    with required, pytest.raises(FatalCommClosedError, match="encryption is wanted"):
        await connect("rrpc://127.0.0.1:1")


@gen_test()
async def test_protection_of_rdma_needs_certificates(security: Security) -> None:
    protected = {"rdma-security": "sign"}
    async with Pair() as (near, _):
        with dask.config.set({"distributed.comm.rrpc": protected}):
            with pytest.raises(FatalCommClosedError, match="has no TLS, from which the keys come"):
                await connect(near.peer_address)
            with pytest.raises(rrpc.InvalidArgument, match="has no TLS, from which the keys come"):
                await listen(ADDRESS, print)
    for transports, arguments in (
        ("shm,tcp", {}),
        ("shm,verbs,tcp", security.get_connection_args("worker")),
    ):
        with dask.config.set({"distributed.comm.rrpc": protected | {"transports": transports}}):
            async with Pair(**arguments) as (near, far):
                await near.write("x")
                assert await far.read() == "x"


def sum_elsewhere(client: Client) -> int:
    first, second = client.scheduler_info()["workers"]
    array = client.submit(np.arange, 1 << 20, workers=[first])
    total: int = client.submit(np.sum, array, workers=[second]).result(WAIT_SECONDS)
    return total


def of_files(files: dict[str, str]) -> Security:
    roles = {f"tls_{role}_{part}": files[f"tls_{part}"] for role in ROLES for part in ("cert", "key")}
    return Security(require_encryption=True, tls_ca_file=files["tls_ca"], **roles)


@pytest.fixture(params=["text", "files", "configuration"])
def secured(request: Any, security: Security, files: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Arguments of LocalCluster, for each of the three ways to tell the certificates."""
    if request.param == "configuration":
        paths = {name.replace("_", "-"): path for name, path in files.items()}
        with dask.config.set({"distributed.comm.rrpc": paths | {"tls-peer-name": "*"}}):
            yield {}
    else:
        yield {"security": security if request.param == "text" else of_files(files)}


def test_a_cluster(secured: dict[str, Any]) -> None:
    options: dict[str, Any] = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0", **secured}
    with LocalCluster(protocol="rrpc://", **options) as cluster, Client(cluster) as client:
        assert sum_elsewhere(client) == sum(range(1 << 20))
        with pytest.raises(OSError, match="isn't signed by an authority"):
            Client(cluster.scheduler_address, timeout=WAIT_SECONDS, security=Security.temporary())
