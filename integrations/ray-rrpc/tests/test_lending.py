"""Arrays that stay in their owner's memory (``register(borrow=True)``)."""

import pytest
import ray
import ray_rrpc
from actors import Actor
from waiting import eventually

pytestmark = pytest.mark.usefixtures("cluster")

COUNT = 1_000_000


class Two:
    """An owner and a receiver, and what they have counted since they were made."""

    def __init__(self) -> None:
        self.owner, self.receiver = Actor.remote(), Actor.remote()
        self._before = self._stats()

    def _stats(self) -> list[dict[str, int]]:
        stats: list[dict[str, int]] = ray.get([self.owner.stats.remote(), self.receiver.stats.remote()])
        return stats

    def counted(self, name: str) -> tuple[int, int]:
        at_owner, at_receiver = (
            now[name] - was[name] for now, was in zip(self._stats(), self._before, strict=True)
        )
        return at_owner, at_receiver


def test_pool_memory_is_lent() -> None:
    two = Two()
    assert ray.get(two.receiver.keep.remote(two.owner.lent.remote(COUNT, True))) is False
    assert ray.get(two.receiver.sum_of_kept.remote()) == COUNT
    assert two.counted("bytes_borrowed")[1] == 8 * COUNT
    assert two.counted("bytes_read") == (0, 0)
    assert two.counted("bytes_copied") == (0, 0)
    ray.get(two.receiver.let_go.remote())
    eventually(lambda: two.counted("lent_bytes") == (0, 0))


def test_other_memory_is_copied_and_read_only_too() -> None:
    two = Two()
    assert ray.get(two.receiver.keep.remote(two.owner.lent.remote(COUNT, False))) is False
    assert ray.get(two.receiver.sum_of_kept.remote()) == COUNT
    assert two.counted("bytes_borrowed")[1] == 0
    assert two.counted("bytes_read")[1] == 8 * COUNT


def test_who_does_not_borrow_gets_memory_of_its_own() -> None:
    two = Two()
    assert ray.get(two.receiver.keep.remote(two.owner.in_pool.remote(COUNT))) is True
    assert ray.get(two.receiver.sum_of_kept.remote()) == COUNT
    eventually(lambda: two.counted("lent_bytes") == (0, 0))


def test_the_view_outlives_its_object_and_its_owner() -> None:
    two = Two()
    ref = two.owner.lent.remote(COUNT, True)
    ray.get(two.receiver.keep.remote(ref))
    del ref
    eventually(lambda: ray.get(two.owner.held.remote()) == 0)
    assert ray.get(two.receiver.sum_of_kept.remote()) == COUNT
    ray.kill(two.owner)
    assert ray.get(two.receiver.sum_of_kept.remote()) == COUNT


def test_what_can_not_be_read_only_is_not_lent() -> None:
    class Tensor:
        pass

    with pytest.raises(ValueError, match=r"read-only, which Tensor can't be: want numpy\.ndarray"):
        ray_rrpc.register("other", Tensor, borrow=True)
