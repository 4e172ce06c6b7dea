"""One comm: what arrives, and how it ends."""

import asyncio
from typing import Any

import numpy as np
import pytest
from distributed.comm import CommClosedError, connect, listen
from distributed.protocol import Serialized, to_serialize
from distributed.utils_test import gen_cluster, gen_test

ADDRESS = "rrpc://127.0.0.1"


class Pair:
    """Two comms, each the other's end."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self.accepted: asyncio.Queue[Any] = asyncio.Queue()

    async def __aenter__(self) -> Any:
        self._listener = await listen(ADDRESS, self.accepted.put, **self._options)
        self.near = await connect(self._listener.contact_address, **self._options)
        self.far = await self.accepted.get()
        return self.near, self.far

    @property
    def connections(self) -> int:
        """Number of connections that the listener serves."""
        return int(self._listener.tcp_server.stats()["connections"])

    async def __aexit__(self, *exc_info: object) -> None:
        for comm in self.near, self.far:
            await comm.close()
        self._listener.stop()


@gen_test()
async def test_arrays_arrive_writable_each_in_memory_of_its_own() -> None:
    sent = [np.arange(size, dtype=np.float64) for size in (0, 3, 5000, 1 << 20)]
    async with Pair() as (near, far):
        await near.write({"arrays": [to_serialize(array) for array in sent]})
        arrived = (await far.read())["arrays"]
    for ours, theirs in zip(arrived, sent, strict=True):
        assert (ours == theirs).all()
        ours[...] = 7
    large = [array for array in arrived if array.nbytes >= 1 << 14]
    assert not np.shares_memory(*large)


@gen_test()
async def test_frames_pass_through_a_comm_that_does_not_deserialize() -> None:
    array = np.arange(1 << 18)
    async with Pair(deserialize=False) as (near, far):
        await near.write({"x": to_serialize(array)})
        passed = await far.read()
        assert isinstance(passed["x"], Serialized)
        await far.write(passed)
        again = await near.read()
        assert sum(memoryview(frame).nbytes for frame in again["x"].frames) == array.nbytes


@gen_test()
async def test_messages_keep_their_order() -> None:
    async with Pair() as (near, far):

        async def write() -> None:
            for number in range(200):
                await near.write({"number": number, "data": to_serialize(np.full(number * 100, number))})

        writing = asyncio.ensure_future(write())
        for number in range(200):
            message = await far.read()
            assert message["number"] == number
            assert (message["data"] == number).all()
        await writing


@gen_test()
async def test_what_was_written_before_close_arrives() -> None:
    async with Pair() as (near, far):
        await near.write({"x": to_serialize(np.ones(1 << 18))})
        reading = asyncio.ensure_future(far.read())
        await near.close()
        assert (await reading)["x"].sum() == 1 << 18
        with pytest.raises(CommClosedError):
            await far.read()


@gen_test()
async def test_a_cancelled_read_ends_the_comm() -> None:
    async with Pair() as (near, far):
        reading = asyncio.ensure_future(near.read())
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert near.closed()
        with pytest.raises(CommClosedError):
            await far.read()


@gen_test()
async def test_comms_to_one_address_share_a_connection() -> None:
    pair = Pair()
    async with pair as (near, far):
        second = await connect(near.peer_address)
        accepted = await pair.accepted.get()
        assert pair.connections == 1
        for comm in second, accepted:
            await comm.close()
        await near.write({"x": 2})
        assert await far.read() == {"x": 2}


@gen_test()
async def test_nobody_listens() -> None:
    with pytest.raises(OSError, match="Timed out trying to connect"):
        await connect("rrpc://127.0.0.1:1", timeout=0.5)


@gen_cluster(client=True, config={"distributed.comm.default-scheme": "rrpc"})
async def test_nothing_is_left_of_a_cluster_in_one_loop(c: Any, s: Any, a: Any, b: Any) -> None:
    assert s.address.startswith("rrpc://")
    array = c.submit(np.arange, 1 << 18, workers=[a.address])
    total = c.submit(np.sum, array, workers=[b.address])
    assert await total == sum(range(1 << 18))
