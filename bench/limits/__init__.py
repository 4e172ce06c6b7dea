"""What the machine itself can do: nothing that passes messages on it gets past these."""

from bench.limits import memcpy, pingpong, readv
from bench.limits.base import Limit

LIMITS: dict[str, Limit] = {
    limit.name: limit
    for limit in (
        Limit("limit: spinning", "echo", pingpong.spin, pingpong.missing),
        Limit("limit: waking", "echo", pingpong.wake, pingpong.missing),
        Limit("limit: memcpy", "array", memcpy.measure),
        Limit("limit: process_vm_readv", "array", readv.measure, readv.missing),
    )
}

__all__ = ["LIMITS", "Limit"]
