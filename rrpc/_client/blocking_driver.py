"""The blocking driver of calls: the calling thread waits for whatever a course asks for."""

from __future__ import annotations

import concurrent.futures
import threading
from functools import partial
from typing import Any

from rrpc._call.chain import REFUSED, Chain, Sleep, drive
from rrpc._call.outgoing import Exchange, OutgoingCall, Waiting

__all__ = ["carry_out", "run"]


def run(chain: Chain) -> Any:
    """Carries a call out, and returns its result."""
    try:
        return carry_out(chain)
    finally:
        chain.call.end()


def carry_out(chain: Chain) -> Any:
    """Carries a course out to its end, which may not be the call's."""
    return drive(chain, partial(_do, chain.call))


def _do(call: OutgoingCall, asked: Any) -> Any:
    if type(asked) is Exchange:
        return _exchange(call, asked)
    if type(asked) is Waiting:
        return _wait(call, asked)
    return _sleep(call, asked.seconds) if type(asked) is Sleep else REFUSED


def _exchange(call: OutgoingCall, exchange: Exchange) -> tuple[bytes, Any, bytes]:
    handle = exchange.start()
    try:
        call.interrupt_with(handle.cancel)
        payload, blocks = handle.result()
    except Exception:
        raise
    except BaseException:  # Ctrl-C: the caller goes, so the call does
        handle.cancel()
        raise
    finally:
        call.interrupt_with(None)
    return payload, blocks, handle.metadata()


def _sleep(call: OutgoingCall, seconds: float) -> None:
    seconds, late = call.nap(seconds)
    woken = threading.Event()
    call.interrupt_with(woken.set)
    woken.wait(seconds)
    call.interrupt_with(None)
    call.check(late)


def _wait(call: OutgoingCall, asked: Waiting) -> Any:
    future = asked.future
    call.interrupt_with(future.cancel)
    try:
        if asked.drive is not None:
            asked.drive(call.time_left())
        return future.result(call.time_left())
    except (concurrent.futures.CancelledError, concurrent.futures.TimeoutError):
        if not future.cancel():
            return future.result()  # it has just ended; or raised DeadlineExceeded, which is a TimeoutError
        raise asked.late() from None
    except BaseException:  # Ctrl-C: the caller goes, so what it waits for does
        future.cancel()
        raise
    finally:
        call.interrupt_with(None)
