"""Calling again, at a chosen place among the interceptors."""

from __future__ import annotations

from typing import Any, Protocol

from .base import ClientInterceptor, Steps

__all__ = ["Retry"]


class Policy(Protocol):
    """What :class:`rrpc.RetryPolicy` is."""

    def link(self, call: Any) -> Steps:
        """Around the call."""


class Retry(ClientInterceptor):
    """Makes calls that failed again, as a client does that has the policy as its ``retry``.

    What stands outside of it sees one call, what stands inside sees each attempt. A client's own ``retry`` is inside of
    all interceptors. Calls with streams aren't made again.
    """

    def __init__(self, policy: Policy) -> None:
        if not callable(getattr(policy, "link", None)):
            raise TypeError(f"policy must be a rrpc.RetryPolicy, not {type(policy).__name__}")
        self._policy = policy

    def unary(self, call: Any) -> Steps:
        return (yield from self._policy.link(call))
