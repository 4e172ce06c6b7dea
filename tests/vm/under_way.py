"""What is under way when a peer vanishes: a call in its handler, arguments and results being read."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NoReturn

import numpy as np
from processes import TIME_SCALE, eventually

import rrpc

LARGE_BYTES = 4 << 20
CALL_SECONDS = 600.0


def slowly(seconds: float) -> float:
    """So long in a guest of the usual speed: for keep-alive times, which a slow guest would miss."""
    return seconds * max(1.0, TIME_SCALE / 10)


def again_and_again(client: rrpc.Client, method: str, argument: Any) -> NoReturn:
    """Until it raises: so that there is bulk under way at any time."""
    while True:
        client.call(method, argument, timeout=CALL_SECONDS)


class UnderWay:
    """On one connection to a server of lab_service, from when both ends have begun."""

    def __init__(self, client: rrpc.Client, key: str) -> None:
        large = np.ones(LARGE_BYTES, np.uint8)
        pool = ThreadPoolExecutor(3)
        self.futures: dict[str, Future[Any]] = {
            "a call": pool.submit(client.call, "Lab.hold", key, CALL_SECONDS, timeout=CALL_SECONDS),
            "arguments": pool.submit(again_and_again, client, "Lab.size", large),
            "results": pool.submit(again_and_again, client, "Lab.make", LARGE_BYTES),
        }
        pool.shutdown(wait=False)
        eventually(lambda: client.call("Lab.holding", key), 60.0, f"the handler of {key} at work")

    def errors(self, timeout: float) -> dict[str, str]:
        """What each ends with, which must be Unavailable; lets go of all that it held."""
        lines = {}
        for what, future in self.futures.items():
            error = future.exception(timeout=timeout)
            assert isinstance(error, rrpc.Unavailable), f"{what}: {error!r}"
            lines[what] = str(error)
            assert "\n" not in lines[what]
        self.futures.clear()
        return lines
