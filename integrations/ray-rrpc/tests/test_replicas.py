"""Services as Ray actors: found, restarted, stopped."""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import ray
import ray_rrpc
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from scaler_client import ScalerClient
from service import Scaler
from waiting import Lateness, eventually, freeze

import rrpc

pytestmark = pytest.mark.usefixtures("cluster")
RETRY = rrpc.RetryPolicy(max_attempts=20, initial_backoff=0.05, max_backoff=0.5, budget=None)


@pytest.fixture(scope="module")
def far(cluster: Any) -> Any:
    """A second node."""
    node = cluster.add_node(num_cpus=4, object_store_memory=100 << 20)
    cluster.wait_for_nodes()
    return node


@pytest.fixture(scope="module")
def scalers(cluster: Any) -> Iterator[ray_rrpc.Replicas]:
    with ray_rrpc.serve(Scaler, 3.0, replicas=2) as replicas:
        yield replicas


def connected(replicas: ray_rrpc.Replicas, **options: Any) -> ScalerClient:
    return ScalerClient(
        replicas.target, **{"policy": "round_robin", "timeout": 60.0, "retry": RETRY, **options}
    )


def pids(client: ScalerClient) -> set[int]:
    return {client.pid() for _ in range(10)}


def test_clients_find_all_replicas(scalers: ray_rrpc.Replicas) -> None:
    assert scalers.target == "rrpc+ray://Scaler"
    assert len(set(scalers.addresses())) == 2
    with connected(scalers) as client:
        assert client.scale(np.ones(100_000)).sum() == 300_000
        eventually(lambda: len(pids(client)) == 2)


def test_actors_call_them_too(scalers: ray_rrpc.Replicas) -> None:
    @ray.remote(num_cpus=0)
    def use(target: str) -> float:
        import ray_rrpc  # noqa: F401, it knows the scheme

        with ScalerClient(target, timeout=60.0) as client:
            return float(client.scale(np.ones(10)).sum())

    assert ray.get(use.remote(scalers.target)) == 30


def test_a_killed_replica_is_started_again_and_found(scalers: ray_rrpc.Replicas) -> None:
    with connected(scalers) as client:
        eventually(lambda: len(pids(client)) == 2)
        before = pids(client)
        victim = before.pop()
        os.kill(victim, signal.SIGKILL)
        for _ in range(20):
            assert client.scale(np.ones(10)).sum() == 30, "the other one serves meanwhile"
        now = eventually(lambda: len(found := pids(client) - {victim}) == 2 and found, timeout=60)
        assert before < now


def test_a_frozen_replica_costs_a_call_no_more_than_its_deadline(scalers: ray_rrpc.Replicas) -> None:
    with connected(scalers, timeout=60.0) as client:
        eventually(lambda: len(pids(client)) == 2)
        victim = client.pid()
        freeze(victim)
        try:
            failed = 0
            for _ in range(8):
                with Lateness() as late:
                    start = time.monotonic()
                    try:
                        client.scale(np.ones(10), timeout=0.3)
                    except rrpc.DeadlineExceeded:
                        failed += 1
                    took = time.monotonic() - start
                assert took < 0.3 + late.slack
            assert 0 < failed < 8
            start = time.monotonic()
            assert len(scalers.addresses()) == 1, "it doesn't answer, and isn't waited for"
        finally:
            os.kill(victim, signal.SIGCONT)
        eventually(lambda: len(scalers.addresses()) == 2)


def test_a_lost_node_has_its_replicas_started_elsewhere(cluster: Any, far: Any) -> None:
    there = {"scheduling_strategy": NodeAffinitySchedulingStrategy(far.node_id, soft=True)}
    with (
        ray_rrpc.serve(Scaler, replicas=2, name="moved", actor_options=there) as replicas,
        connected(replicas, wait_for_ready=True) as client,
    ):
        assert {client.node() for _ in range(10)} == {far.node_id}
        cluster.remove_node(far, allow_graceful=False)
        left = {cluster.head_node.node_id}
        eventually(lambda: {client.node() for _ in range(10)} == left and len(pids(client)) == 2, timeout=60)


def test_a_name_is_taken_until_its_replicas_are_stopped(scalers: ray_rrpc.Replicas) -> None:
    with pytest.raises(rrpc.AlreadyExists, match="called 'Scaler' are there"):
        ray_rrpc.serve(Scaler)
    assert len(scalers.addresses()) == 2, "which leaves those that are there alone"
    with ray_rrpc.serve(Scaler, replicas=1, name="brief") as brief:
        address = brief.addresses()[0]
    assert brief.addresses() == []
    brief.stop()
    with pytest.raises(rrpc.Unavailable):
        rrpc.connect(address, timeout=5.0)
    with pytest.raises(rrpc.Unavailable, match="no replicas of that name"):
        rrpc.connect(brief.target)
    with ray_rrpc.serve(Scaler, replicas=1, name="brief") as again:
        assert len(again.addresses()) == 1


def test_what_keeps_replicas_from_starting_is_told(cluster: Any) -> None:
    with pytest.raises(
        rrpc.Unavailable, match=r"(?s)failed while it started.*the table is missing"
    ) as raised:
        ray_rrpc.serve(Scaler, broken=True, replicas=1, name="broken")
    assert "'broken'" in str(raised.value)
    with pytest.raises(rrpc.DeadlineExceeded, match=r"1 of 1 replicas of 'huge' don't serve after 1.0 s"):
        ray_rrpc.serve(Scaler, replicas=1, name="huge", timeout=1.0, actor_options={"resources": {"gold": 1}})
    with pytest.raises(ValueError, match="replicas=0"):
        ray_rrpc.serve(Scaler, replicas=0)
