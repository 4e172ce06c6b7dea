"""Picks the connection that a call takes: one of its channel, whose two ends agree on the call's interface.

An agreement is there where both ends have the same version of the interface, and on a connection that was made for a
client of this interface. Where it isn't, the first call has the peer asked for its version, and waits.
"""

# Steps of a course, as in `outgoing.py`.

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from rrpc.errors import Cancelled, DeadlineExceeded, FailedPrecondition, RpcError, Unavailable, unsent

from .steps import Waiting

if TYPE_CHECKING:
    from concurrent.futures import Future

    from rrpc._channel import Channel, Connection, Contract


class Call(Protocol):
    """An ``OutgoingCall``, as far as it is looked at here."""

    channel: Channel
    wait_for_ready: bool

    @property
    def request(self) -> Any: ...
    @property
    def method(self) -> str: ...
    @property
    def cancelled(self) -> bool: ...
    def check(self) -> None: ...


def agreed(connection: Connection | None, contract: Contract | None) -> Connection | None:
    """Returns the connection if its ends agree on the contract, None for a call by name. Otherwise returns None."""
    if connection is None or contract is None or connection.agreed(contract) is not None:
        return connection
    return None


def connected(call: Call) -> Generator[Any, Any, Connection]:
    """Picks a connection of the call's channel, waiting if needed. A step of a course uses ``yield from``."""
    channel, contract = call.channel, call.request.contract
    while True:
        picked = channel.pick_nowait(call.wait_for_ready)
        if picked is None:
            soon = channel.pick_soon(call.wait_for_ready)
            picked = yield from _waited(
                soon, call, lambda: f"no connection within its timeout{channel.why_not()}"
            )
        if contract is None or picked.agreed(contract) is not None:
            return picked
        why = f"{picked.address} didn't describe its version of the interface within the call's timeout"
        try:
            yield from _waited(channel.agree_soon(picked, contract), call, partial(str, why))
        except Unavailable as error:
            if picked.usable():
                raise
            channel.failed(picked, error)
            call.check()
        except FailedPrecondition:
            channel.forget(contract)
            raise
        else:
            return picked


def _waited(future: Future[Any], call: Call, why_late: Callable[[], str]) -> Generator[Any, Any, Any]:
    try:
        return (yield Waiting(future, partial(_late, call, why_late)))
    finally:
        future.cancel()  # for whoever waits no longer


def _late(call: Call, why: Callable[[], str]) -> RpcError:
    """Returns the error for a call that waits here when its time is up or it is cancelled."""
    if call.cancelled:
        return unsent(Cancelled("the call was cancelled by its caller"))
    return unsent(DeadlineExceeded(f"{call.method}(): {why()}"))
