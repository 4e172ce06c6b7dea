"""The services that every server has: their clients and types.

::

    from rrpc.std import HealthClient, HealthStatus

    with HealthClient("rrpc://127.0.0.1:7471") as health:
        assert health.check("Nearest") is HealthStatus.SERVING

``idl/std/`` has their interfaces, of which ``rrpc-gen idl/std/*.rrpc -o rrpc/std/generated_stubs.py`` makes the
stubs.
"""

from .generated_stubs import (
    HealthBase,
    HealthClient,
    HealthStatus,
    ProcessStats,
    ReflectionBase,
    ReflectionClient,
    StatsBase,
    StatsClient,
)

__all__ = [
    "HealthBase",
    "HealthClient",
    "HealthStatus",
    "ProcessStats",
    "ReflectionBase",
    "ReflectionClient",
    "StatsBase",
    "StatsClient",
]
