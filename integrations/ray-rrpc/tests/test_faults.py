"""Owners and receivers that are killed or frozen, and those who ask for what isn't theirs."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import ray
import ray_rrpc
from actors import Actor
from ray_rrpc.peers import Peers
from waiting import Lateness, eventually, freeze

import rrpc
from tests.faults.relay import Relay

pytestmark = pytest.mark.usefixtures("cluster")
COUNT = 500_000


def pid(actor: Any) -> int:
    return int(ray.get(actor.pid.remote()))


def held(ref: Any) -> Any:
    """Returns the metadata that Ray gives receivers of an object."""
    return ray._private.worker.global_worker.rdt_manager.get_rdt_metadata(ref.hex()).tensor_transport_meta


def made(actor: Any, method: str = "ones") -> Any:
    ref = getattr(actor, method).remote(COUNT)
    ray.wait([ref], fetch_local=False)
    eventually(lambda: held(ref))
    return ref


def test_a_killed_owner_is_named() -> None:
    producer, consumer = Actor.remote(), Actor.remote()
    ref, victim = made(producer), pid(producer)
    assert ray.get(consumer.sum.remote(ref)) == COUNT
    os.kill(victim, signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(
        Exception, match=rf"couldn't be fetched from its owner, actor .* \(pid {victim}"
    ) as raised:
        ray.get(consumer.sum.remote(ref), timeout=30)
    assert isinstance(raised.value, ray_rrpc.FetchFailed)
    assert "Unavailable" in str(raised.value)
    assert time.monotonic() - start < 10, "long before the fetch's own deadline of 30 s"
    stats = eventually(lambda: (s := ray.get(consumer.stats.remote()))["connections_open"] == 0 and s)
    assert stats["pool_bytes_used"] == stats["exposures_live"] == 0
    assert ray.get(consumer.sum.remote(made(Actor.remote()))) == COUNT, "the receiver goes on with others"


def test_an_owner_that_is_killed_amid_a_fetch() -> None:
    producer = Actor.remote()
    ref, victim = made(producer), pid(producer)
    assert ray.get(ref).sum() == COUNT
    before = rrpc.stats()
    freeze(victim)  # so that the fetch is under way
    with ThreadPoolExecutor() as threads:
        result = threads.submit(ray.get, ref)
        eventually(lambda: rrpc.stats()["calls_started"] > before["calls_started"])
        assert not result.done()
        os.kill(victim, signal.SIGKILL)
        start = time.monotonic()
        with pytest.raises(ray_rrpc.FetchFailed, match=rf"pid {victim}.*Unavailable"):
            result.result(timeout=30)
    assert time.monotonic() - start < 10, "long before the fetch's own deadline of 30 s"
    eventually(lambda: rrpc.stats()["connections_open"] < before["connections_open"])


def assert_costs_the_deadline(ref: Any, owner: int) -> None:
    """A fetch of an object of ``rrpc_brief`` fails after that transport's timeout, and names the owner."""
    with Lateness() as late:
        start = time.monotonic()
        with pytest.raises(ray_rrpc.FetchFailed, match=rf"pid {owner}.*DeadlineExceeded"):
            ray.get(ref)
        took = time.monotonic() - start
    assert 1.0 <= took < 1.0 + late.slack


def test_a_frozen_owner_costs_no_more_than_the_deadline() -> None:
    producer = Actor.remote()
    ref, victim = made(producer, "brief"), pid(producer)
    assert ray.get(ref).sum() == COUNT
    freeze(victim)
    try:
        assert_costs_the_deadline(ref, victim)
        with Lateness() as late:
            start = time.monotonic()
            with pytest.raises(ray.exceptions.GetTimeoutError):
                ray.get(ref, timeout=0.3)
            took = time.monotonic() - start
        assert 0.3 <= took < 0.3 + late.slack
    finally:
        os.kill(victim, signal.SIGCONT)
    assert eventually(lambda: ray.get(ref).sum()) == COUNT, "resumed, it serves again"


def test_an_owner_that_is_cut_off_costs_no_more_than_the_deadline() -> None:
    relay = Relay()
    producer = Actor.options(runtime_env={"env_vars": {"RRPC_TRANSPORTS": "tcp"}}).remote()
    relay.target = ray.get(producer.behind.remote(relay.port))
    ref, owner = made(producer, "brief"), pid(producer)
    assert ray.get(ref).sum() == COUNT
    relay.silence(True)
    assert_costs_the_deadline(ref, owner)
    relay.silence(False)
    assert eventually(lambda: fetched(ref)) == COUNT, "connected again, it serves"
    relay.close()


def fetched(ref: Any) -> float:
    """The sum of an object's array, or 0.0 if its owner can't be reached."""
    try:
        return float(ray.get(ref).sum())
    except ray_rrpc.FetchFailed:
        return 0.0


def test_a_killed_receiver_leaves_nothing_at_the_owner() -> None:
    producer, consumer = Actor.remote(), Actor.remote()
    ref, victim = made(producer), pid(consumer)
    fetching = consumer.fetch_for_ever.remote(held(ref))
    stats = eventually(lambda: (s := ray.get(producer.stats.remote()))["calls_served"] > 20 and s)
    assert stats["connections_open"] == 1
    os.kill(victim, signal.SIGKILL)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(fetching)
    eventually(lambda: ray.get(producer.stats.remote())["connections_open"] == 0)
    eventually(lambda: ray.get(producer.stats.remote())["exposures_live"] == 0)
    assert ray.get(producer.stats.remote())["bytes_exposed"] == 0
    del ref
    eventually(lambda: ray.get(producer.held.remote()) == 0)


def test_an_aborted_fetch_ends_at_once() -> None:
    producer = Actor.remote()
    ref, victim = made(producer), pid(producer)
    freeze(victim)
    try:
        transport = ray.experimental.rdt.util.get_tensor_transport_manager("RRPC")
        fetch = transport.fetch_multiple_tensors(ref.hex(), held(ref), None)
        transport.abort_transport(ref.hex(), None)
        with pytest.raises(ray_rrpc.FetchFailed, match="Cancelled"):
            transport.wait_fetch_complete(fetch)
    finally:
        os.kill(victim, signal.SIGCONT)
    assert ray.get(ref).sum() == COUNT


def test_keys_open_one_object_and_end_with_it() -> None:
    producer = Actor.remote()
    ref = made(producer)
    meta = held(ref)
    with rrpc.connect(meta.address, timeout=10.0) as client:
        assert client.call("ray.Tensors.fetch", meta.key, 0, 1)[0].sum() == COUNT
        for key in ("", ref.hex(), "0" * 32 + "." + ref.hex(), meta.key + "0"):
            with pytest.raises(rrpc.NotFound, match="doesn't hold"):
                client.call("ray.Tensors.fetch", key, 0, 1)
        assert client.call("ray.Tensors.fetch", meta.key, 1, 1 << 60) == []
        with pytest.raises(rrpc.InvalidArgument):
            client.call("ray.Tensors.fetch", [meta.key], 0, 1)
        del ref
        eventually(lambda: ray.get(producer.held.remote()) == 0)
        with pytest.raises(rrpc.NotFound, match="doesn't hold"):
            client.call("ray.Tensors.fetch", meta.key, 0, 1)


def test_what_is_not_as_the_metadata_says_is_refused() -> None:
    producer = Actor.remote()
    ref = made(producer)
    meta = held(ref)
    transport = ray.experimental.rdt.util.get_tensor_transport_manager("RRPC")
    (shape, dtype), truth = meta.tensor_meta[0], meta.tensor_meta
    for wrong in ([((shape[0] + 1,), dtype)], [(shape, dtype.newbyteorder())], truth * 2):
        lying = type(meta)(wrong, "cpu", meta.address, meta.key, meta.owner)
        with pytest.raises(ray_rrpc.FetchFailed, match="expected"):
            transport.recv_multiple_tensors(ref.hex(), lying, None)
    assert rrpc.stats()["exposures_live"] == 0


def test_connections_that_rest_are_bounded() -> None:
    producer = Actor.remote()
    meta = held(ref := made(producer))
    peers = Peers(idle_max=1)
    first = peers.lend(meta.address)
    assert peers.lend(meta.address) is first
    first.call("ray.Tensors.fetch", meta.key, 0, 1, timeout=10.0)
    peers.give_back(meta.address)
    second = meta.address.replace("rrpc://", "tcp://")
    other = peers.lend(second)
    other.call("ray.Tensors.fetch", meta.key, 0, 1, timeout=10.0)
    peers.give_back(second)
    assert first.info()["state"] == "connected", "in use still"
    peers.give_back(meta.address)
    with pytest.raises(rrpc.Unavailable, match="closed"):
        other.call("ray.Tensors.fetch", meta.key, 0, 1, timeout=10.0)
    assert peers.lend(meta.address) is first
    first.close()
    del ref
