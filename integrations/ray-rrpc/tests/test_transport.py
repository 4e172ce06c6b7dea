"""Arrays from actor to actor: the cases of Ray's own tests of custom transports, and what else is promised."""

import time
from typing import Any

import numpy as np
import pytest
import ray
import ray_rrpc
from actors import Actor, everything
from ray.experimental.rdt.util import get_tensor_transport_manager
from ray_rrpc.owner import owner
from waiting import eventually

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(scope="module")
def two(cluster: Any) -> Any:
    return Actor.remote(), Actor.remote()


def test_an_array_goes_from_actor_to_actor(two: Any) -> None:
    first, second = two
    assert ray.get(second.sum.remote(first.echo.remote(np.array([1, 2, 3])))) == 6


def test_methods_without_a_transport_go_on_as_before(two: Any) -> None:
    first, second = two
    assert ray.get(second.sum.remote(first.plain_echo.remote(np.array([4, 5, 6])))) == 15


def test_several_arrays(two: Any) -> None:
    first, second = two
    ref = first.echo.remote([np.array([1, 2]), np.array([3, 4, 5]), np.array([6])])
    assert ray.get(second.sum.remote(ref)) == 21


def test_a_large_array_is_read_from_where_it_is(two: Any) -> None:
    first, second = two
    before = ray.get([first.stats.remote(), second.stats.remote()])
    assert ray.get(second.sum.remote(first.ones.remote(1_000_000))) == 1_000_000
    after = ray.get([first.stats.remote(), second.stats.remote()])
    assert after[1]["bytes_read"] - before[1]["bytes_read"] == 8_000_000
    assert after[0]["bytes_copied"] - before[0]["bytes_copied"] < 1000, "the owner copies nothing"


def test_several_receivers_fetch_the_same(two: Any) -> None:
    ref = two[0].echo.remote(np.array([10, 20, 30]))
    others = [Actor.remote() for _ in range(3)]
    assert ray.get([actor.sum.remote(ref) for actor in others]) == [60] * 3


def test_each_kind_of_array_arrives_as_it_is(two: Any) -> None:
    first, second = two
    ref = first.everything.remote()
    assert ray.get(second.compare.remote(ref)) == []
    arrived = ray.get(second.describe.remote(ref))
    for name, array in everything():
        shape, dtype, fortran, writeable = arrived[name]
        assert (shape, dtype, writeable) == (array.shape, array.dtype.str, True), name
        assert fortran == (array.flags.f_contiguous or array.size == 0), name


def test_a_thousand_small_arrays(two: Any) -> None:
    first, second = two
    ref = first.echo.remote([np.full(3, number) for number in range(5000)])
    assert ray.get(second.sum.remote(ref)) == 3 * sum(range(5000))


def test_an_object_without_arrays(two: Any) -> None:
    first, second = two
    assert ray.get(second.plain_echo.remote(first.echo.remote({"a": 1}))) == {"a": 1}


def test_objects_pass_through_a_chain_of_actors() -> None:
    a, b, c = (Actor.remote() for _ in range(3))
    assert ray.get(c.sum.remote(b.echo.remote(a.ones.remote(50_000)))) == 50_000


def test_the_driver_gets_and_puts(two: Any) -> None:
    assert ray.get(two[0].ones.remote(100_000)).sum() == 100_000
    ref = ray.put(np.arange(100_000), _tensor_transport="rrpc")
    assert ray.get([actor.sum.remote(ref) for actor in two]) == [float(sum(range(100_000)))] * 2
    assert owner.held() == 1
    del ref
    eventually(lambda: owner.held() == 0)


def test_an_actor_puts_and_another_gets(two: Any) -> None:
    first, second = two
    refs = ray.get(first.put.remote(100_000))
    assert ray.get(second.get.remote(refs)) == sum(range(100_000))


@pytest.mark.parametrize("count", [10, 100_000])
def test_an_array_lands_in_the_target(two: Any, count: int) -> None:
    first, second = two
    refs = ray.get(first.put.remote(count))
    assert ray.get(second.get_into_target.remote(refs, count)) == (True, sum(range(count)))


def test_a_target_of_another_shape_is_refused(two: Any) -> None:
    refs = ray.get(two[0].put.remote(100))
    with pytest.raises(ValueError, match="does not match"):
        ray.get(two[1].get_into_target.remote(refs, 99))


def test_what_can_not_be_a_target() -> None:
    with pytest.raises(ValueError, match="writable, C-contiguous"):
        ray_rrpc.target(np.zeros((4, 4)).T[::2])


def test_arrays_of_objects_are_refused_by_name(two: Any) -> None:
    with pytest.raises(TypeError, match=r"array 1 of object .* has dtype object"):
        ray.get(two[0].echo.remote([np.zeros(2), np.array([{}])]))


def test_owners_let_go_when_the_last_reference_is_gone() -> None:
    producer, consumer = Actor.remote(), Actor.remote()
    refs = [producer.ones.remote(100_000) for _ in range(4)]
    assert ray.get([consumer.sum.remote(ref) for ref in refs]) == [100_000] * 4
    assert ray.get(producer.held.remote()) == 4
    del refs
    eventually(lambda: ray.get(producer.held.remote()) == 0)
    eventually(lambda: ray.get(producer.stats.remote())["exposures_live"] == 0)
    eventually(lambda: ray.get(consumer.stats.remote())["pool_bytes_used"] == 0)


def test_receivers_keep_one_connection_for_each_owner() -> None:
    producer, consumer = Actor.remote(), Actor.remote()
    for count in (10, 100_000, 1000):
        ray.get(consumer.sum.remote(producer.ones.remote(count)))
    assert ray.get(producer.stats.remote())["connections_open"] == 1


def test_actors_work_on_while_others_fetch() -> None:
    producer, consumer = Actor.remote(), Actor.remote()
    ref = producer.ones.remote(1_000_000)
    ray.wait([ref])
    busy = producer.sleep.remote(3600.0)
    start = time.monotonic()
    assert ray.get(consumer.sum.remote(ref), timeout=60) == 1_000_000, "fetched while the owner was busy"
    assert not ray.wait([busy], timeout=0)[0]
    assert time.monotonic() - start < 60
    ray.kill(producer)


def test_what_other_processes_unpickle_names_the_package_alone() -> None:
    """Their threads import it at the same time: see PUBLIC in transport.py."""
    registered = get_tensor_transport_manager("RRPC_BRIEF")
    for sent in (type(registered), ray_rrpc.Held([], "cpu"), ray_rrpc.FetchFailed("why")):
        pickled = ray.cloudpickle.dumps(sent)
        assert b"ray_rrpc" in pickled
        assert b"ray_rrpc." not in pickled.replace(b"ray_rrpc.py", b"")


def test_registering() -> None:
    ray_rrpc.register()  # again does nothing
    with pytest.raises(ValueError, match="timeout"):
        ray_rrpc.register("other", timeout=0)
