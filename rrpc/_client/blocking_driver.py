"""The blocking driver of calls: the calling thread waits for whatever a course asks for."""

from __future__ import annotations

import concurrent.futures
import threading
from typing import Any

from rrpc._call.chain import Chain, Sleep
from rrpc._call.outgoing import Exchange, OutgoingCall, Waiting

__all__ = ["going", "run"]


def run(chain: Chain) -> Any:
    """The blocking driver: the call's result."""
    try:
        return going(chain, chain.call)
    finally:
        chain.call.end()


def going(chain: Chain, call: OutgoingCall) -> Any:
    """Carry out a course to its end, which may not be the call's."""
    asked = chain.step()
    while not chain.done:
        value = None
        try:
            if type(asked) is Exchange:
                value = _exchange(call, asked)
            elif type(asked) is Waiting:
                value = _wait(call, asked)
            elif type(asked) is Sleep:
                _sleep(call, asked.seconds)
            else:
                asked = chain.refuse(asked)
                continue
        except BaseException as error:
            asked = chain.step(None, error)
        else:
            asked = chain.step(value)
    return asked


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
