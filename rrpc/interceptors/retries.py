"""Calling again, at a chosen place among the interceptors."""

from __future__ import annotations

from typing import Any, Protocol

from rrpc._call.chain import Steps

from .base import ClientInterceptor


class Policy(Protocol):
    """Interface of ``rrpc.RetryPolicy``."""

    def link(self, call: Any) -> Steps:
        """Surrounds a call without streams."""

    def stream_link(self, call: Any) -> Steps:
        """Surrounds the opening of a call with streams."""


class Retry(ClientInterceptor):
    """Makes calls that failed again, as a client does that has the policy as its ``retry``.

    What stands outside of it sees one call, what stands inside sees each attempt. A client's own ``retry`` is inside of
    all interceptors. Of a call with streams, what stands inside sees each attempt to begin it, and none of those that
    are made once it had begun.
    """

    def __init__(self, policy: Policy) -> None:
        if not callable(getattr(policy, "link", None)):
            raise TypeError(f"policy must be a rrpc.RetryPolicy, not {type(policy).__name__}")
        self._policy = policy

    def unary(self, call: Any) -> Steps:
        """Makes a call without streams again, as the policy says."""
        return (yield from self._policy.link(call))

    def stream(self, call: Any) -> Steps:
        """Makes a call with streams again, as the policy says."""
        return (yield from self._policy.stream_link(call))
