"""Channels: the way to a service, wherever it is and however often it restarts."""

# Any thread may use a channel. `Upkeep`, its inner half, says at its head what may run while its lock is held.

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from rrpc._options import check_names, merged, seconds
from rrpc.errors import DeadlineExceeded, RpcError, Unavailable, goes_elsewhere

from .connection import Connection, Contract
from .ejection import Ejection
from .name_resolver import Names
from .pick_policy import policy_named
from .subchannel import CONNECTING, READY, SHUTDOWN, Backoff
from .upkeep import NEXT_ADDRESS_SECONDS, Upkeep

if TYPE_CHECKING:
    from concurrent.futures import Future

_C = TypeVar("_C", bound="Channel")
_EJECTION = Ejection()


def _core_of(server: Any) -> Any:
    if not getattr(server, "started", False):
        raise TypeError(f"serve= takes an rrpc.Server that has been started, not {server!r:.60}")
    return server._core


class Channel(Upkeep):
    """The way to a service: its addresses, and the connections to them.

    A host's name stands for all of the addresses that DNS has for it, other schemes for what
    ``rrpc.register_resolver`` was given (``file:///path`` for the lines of the file). It connects when a call needs it,
    and again after a connection was lost; calls meanwhile fail with Unavailable, or wait if they are told to. Many
    clients and threads may use it. After a fork the child needs a channel of its own.

    Args:
        target: An address or several (a list, or ``rrpc://a:7471,b:7471``).
        policy: Which of several addresses a call takes: "pick_first", "round_robin" or "least_outstanding".
        connect_timeout: Seconds that connecting may take; None: no limit.
        poll: How replies are waited for: "adaptive" (spin, then sleep), "busy" or "event".
        backoff: Delays between attempts to connect that fail.
        ejection: When an address where calls fail again and again is left out for a while; None: never.
        serve: A ``rrpc.Server``, started, whose services the servers may call over these connections
            (``rrpc.Context.client``); it need not listen.
        **options: Those of the transport, as for ``Client``.

    Raises:
        TypeError: There is no option of that name, or one isn't of the type that it must be.
        ValueError: There is no policy of that name, or no address.
        InvalidArgument: ``connect_timeout`` is no number of seconds from 0 up. Connecting raises it where the
            address has no such form, or another option can't have its value.
    """

    def __init__(
        self,
        target: str | Sequence[str],
        *,
        policy: str = "pick_first",
        connect_timeout: float | None = 10.0,
        poll: str = "adaptive",
        backoff: Backoff | None = None,
        ejection: Ejection | None = _EJECTION,
        serve: Any = None,
        **options: Any,
    ) -> None:
        names = Names(target)
        check_names(options, type(self).__init__)
        if backoff is not None and not isinstance(backoff, Backoff):
            raise TypeError(f"backoff must be an rrpc.Backoff, not {backoff!r:.60}")
        if ejection is not None and not isinstance(ejection, Ejection):
            raise TypeError(f"ejection must be an rrpc.Ejection, not {ejection!r:.60}")
        options = merged({"poll": poll, **options})
        if serve is not None:
            options["serve"] = _core_of(serve)
        chosen = policy_named(policy)
        super().__init__(names, chosen, options, connect_timeout, backoff or Backoff(), ejection)

    @property
    def target(self) -> str:
        """Returns the target given to the constructor; several addresses are joined by commas."""
        return self._names.text

    @property
    def state(self) -> str:
        """Returns "idle", "connecting", "ready", "transient_failure" or "shutdown", as gRPC's channels have it."""
        with self._lock:
            return self._state()

    # For calls

    def pick_nowait(self, wait_for_ready: bool = False) -> Connection | None:
        """A connection for a call; None: there is none yet, but one is being made.

        Raises Unavailable, or what else keeps it from connecting, unless ``wait_for_ready``.
        """
        self.check_process()
        # Without the lock, which the fast path spares: `ready` is replaced as a whole, and a connection that has just
        # ended is noticed by the next look.
        ready = self.ready
        if ready is not None:
            if ready.usable():
                return ready
            self._lost(ready, ready.why_unusable())
        found, error = self._changed(lambda: self._choose(wait_for_ready, monotonic()))
        if error is not None:
            raise error
        return found

    def pick_soon(self, wait_for_ready: bool = False) -> Future[Connection]:
        """Returns a future for a connection, picked like ``pick_nowait`` does. Errors go to the future.

        Cancel the future when you no longer wait for it.
        """
        from concurrent.futures import Future

        future: Future[Connection] = Future()
        try:
            self._serve(future, wait_for_ready, monotonic())
        except BaseException:  # Ctrl-C
            future.cancel()
            raise
        return future

    def failed(self, connection: Connection, error: RpcError) -> None:
        """A call over the connection ended so."""
        # Where one address serves all calls there is no other to prefer.
        if self._ejection is not None and self._policy.keeps_all:
            with self._lock:
                connection.record.failed(error, monotonic(), self._ejection)
        if goes_elsewhere(error) or not connection.usable():
            # What a handler said, as the last thing to come, is no reason for calls after it.
            own = isinstance(error, Unavailable) and not error._answered
            self._lost(connection, error if own else connection.why_unusable())

    def succeeded(self, connection: Connection) -> None:
        """A call over the connection had its reply."""
        # Read without the lock: mostly there is nothing to reset.
        if connection.record.strikes or connection.record.ejections:
            with self._lock:
                connection.record.succeeded(monotonic())

    def admit(self, contract: Contract) -> None:
        """Makes all connections agree on the contract's services; the existing ones do it now."""
        end = self._connect_end()
        is_new = contract not in self._contracts
        # Comes before the loop, so that connections made meanwhile agree on it too.
        if is_new:
            self._contracts.append(contract)
        try:
            for connection in self.connections():
                if connection.usable():
                    connection.agreement(contract, end)
        except BaseException:
            # Its client isn't made then, and doesn't keep others from connecting again.
            if is_new:
                self._contracts.remove(contract)
            raise

    # For users

    def connect(self) -> None:
        """Connect now, unless it is, to the first address that can be had; raises what keeps it from that."""
        self.check_process()
        subchannel = self._subchannels[0]
        with self._lock:
            alone = self._names.fixed is not None and len(self._subchannels) == 1
            # With one address that nobody connects to yet, this thread connects and gets the error itself.
            here = alone and not self._closed and subchannel.state not in (CONNECTING, READY)
            if here:
                subchannel.state = CONNECTING
        if not here:
            timeout = self._connect_timeout
            # Each further address is begun that much later (`pick_first`), and has its whole timeout too.
            more = NEXT_ADDRESS_SECONDS * (len(self._subchannels) - 1)
            self._wait(self.pick_soon(), None if timeout is None else timeout + more)
            return
        attempt = self._attempt(subchannel, self._connect_end())
        attempt.run_interruptibly(functools.partial(self._ended, subchannel))
        if attempt.error is not None:
            raise attempt.error

    def wait_ready(self, timeout: float | None = None) -> None:
        """Connect, and try again until it succeeds; DeadlineExceeded after ``timeout`` seconds."""
        wait = None if timeout is None else seconds(timeout)
        self._wait(self.pick_soon(wait_for_ready=True), wait)

    def _wait(self, future: Future[Connection], timeout: float | None) -> None:
        from concurrent.futures import TimeoutError as NotYet

        try:
            future.result(timeout)
        except NotYet:
            if not future.cancel():
                future.result()  # it has just ended; or raised DeadlineExceeded, which is a TimeoutError
                return
            why = f"connecting to {self.target}: not ready within {timeout} s{self.why_not()}"
            raise DeadlineExceeded(why) from None
        except BaseException:
            future.cancel()
            raise

    def connections(self) -> list[Connection]:
        """Returns the last connection to each address that was ever connected."""
        with self._lock:
            return [s.connection for s in self._subchannels if s.connection is not None]

    def info(self) -> dict[str, Any]:
        """``target``, ``state``, and ``addresses``: of each its address, state, failures in a row, why_not, ejected."""
        now = monotonic()
        with self._lock:
            addresses = [subchannel.info(now) for subchannel in self._subchannels]
            return {"target": self.target, "state": self._state(), "addresses": addresses}

    def why_not(self) -> str:
        """Returns ": " and why there is no connection, for error messages; empty if no reason is known."""
        with self._lock:
            errors = [s.error.message for s in self._subchannels if s.error is not None]
        return f": {errors[0]}" if errors else ""

    def connect_failure(self, error: RpcError) -> RpcError:
        """Returns the error that ``connect`` raises where a call gets ``error``.

        If the only address timed out, ``connect`` raises DeadlineExceeded. A call gets another error then, as
        connect_timeout isn't the call's deadline.
        """
        with self._lock:
            late = any(isinstance(s.error, DeadlineExceeded) for s in self._subchannels)
            alone = len(self._subchannels) == 1
        return DeadlineExceeded(error.message) if alone and late else error

    def close(self) -> None:
        """End all connections; calls in flight fail with Unavailable. Closing twice does nothing."""
        if not self.of_this_process:
            return
        with self._lock:
            self._closed = True
            self.ready = None
            for subchannel in self._subchannels:
                subchannel.state = SHUTDOWN
            for timer in (self._retry_timer, self._next_timer, self._resolve_timer):
                if timer is not None:
                    timer.cancel()
            connections = list(self._live)
        for connection in connections:
            connection.close()
        # Calls that wait get their error.
        self._go_on()

    def __enter__(self: _C) -> _C:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self, _warn: Any = warnings.warn) -> None:
        # Of one that wasn't made, or is a way back to a client, there is nothing to close.
        if getattr(self, "_closed", True) or not self.of_this_process:
            return
        if any(connection.usable() for connection in self.connections()):
            _warn(
                f"unclosed connections to {self.target}: close the client, or its channel",
                ResourceWarning,
                source=self,
            )

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} can't be pickled or copied, as its connections are this process's: "
            f"pass its target, {self.target!r}, and make another"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.target!r})"
