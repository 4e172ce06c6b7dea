"""Carries out the courses of calls in callbacks. The drivers of both styles build on this.

A course asks for something (``Exchange``, ``Waiting``, ``Sleep``, in asyncio also an awaitable), which becomes a
``Wait``. The wait ends once, and with it the course goes on: with its outcome, or because it was given up.
"""

# Outcomes come on any thread, also while the thread that began the wait is still in `begin`. The thread that takes
# the wait's owner (`Wait.take`) goes on with the course, so one thread at a time runs it.

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

from rrpc.errors import RpcError

from .chain import Chain
from .outgoing import OutgoingCall
from .steps import Sleep, Waiting

_UNDER_WAY = object()


class CallbackDriver:
    """Carries out one course. Each style has a subclass, which says how it waits."""

    waits: ClassVar[Mapping[type, type[Wait]]]
    """The kind of wait for each kind of step."""
    other_waits: ClassVar[type[Wait] | None] = None
    """The kind of wait for all other steps; None: they are refused."""

    def __init__(self, chain: Chain) -> None:
        self.call: OutgoingCall = chain.call
        self._chain = chain
        self._wait: Wait | None = None

    def later(self, seconds: float, do: Callable[[], object]) -> Any:
        """Has ``do()`` called after so many seconds. Returns an object with ``cancel()``."""
        raise NotImplementedError

    def soon(self, do: Callable[..., object], *arguments: Any) -> None:
        """Has ``do(*arguments)`` called soon, but not within this call. Any thread may call this."""
        raise NotImplementedError

    def come_back(self, do: Callable[..., object], *arguments: Any) -> None:
        """Calls ``do(*arguments)`` where the course may go on, from the callback of a future, on any thread."""
        raise NotImplementedError

    def end(self, value: Any, error: BaseException | None) -> None:
        """Takes the outcome of the course. It is called once."""
        raise NotImplementedError

    def go_on(self, value: Any = None, error: BaseException | None = None, asked: Any = None) -> None:
        """Goes on with what came of the last step, until there is something to wait for.

        ``asked`` is what the first step gave, if somebody has taken it.
        """
        chain = self._chain
        self._wait = None
        try:
            asked = chain.step(value, error) if asked is None else asked
            while not chain.done:
                asked = self._begin(asked)
                if asked is _UNDER_WAY:
                    return
        except BaseException as raised:
            self.end(None, raised)
            del self  # the traceback would hold the call, which holds the error, until a collection
        else:
            self.end(asked, None)
        finally:
            error = None

    def _begin(self, asked: Any) -> Any:
        """Begins to wait for what the course asks for. If that fails, returns what it asks for next."""
        kind = self.waits.get(type(asked), self.other_waits)
        if kind is None:
            return self._chain.refuse(asked)
        # Set before the wait begins, since its outcome may go on with the course from another thread and set the next
        # wait.
        wait = self._wait = kind(self)
        try:
            wait.begin(self, asked)
        except BaseException as error:
            if not wait.give_up():  # Ctrl-C, while a callback goes on with the course in another thread
                self.call.cancel()
                raise
            return self._chain.step(None, error)
        return _UNDER_WAY


class Wait:
    """Waits for something that a course asks for. The course goes on with the outcome, unless the wait is given up."""

    __slots__ = ("_begun", "_owner", "_timer")

    def __init__(self, driver: CallbackDriver) -> None:
        # list.pop is atomic, also without the GIL: of several callers of take() one gets the driver.
        self._owner = [driver]  # the caller of take() that pops it goes on with the course
        self._begun: Any = None
        """The core's call or the future that is waited for, once it has begun."""
        self._timer: Any = None

    def begin(self, driver: Any, asked: Any) -> None:
        """Begins to wait for ``asked``. The outcome may come on another thread before this returns."""
        raise NotImplementedError

    def give_up(self) -> bool:
        """Gives up the wait, and ignores its outcome. Returns False if the course goes on by itself."""
        return self.take() is not None

    def take(self) -> Any:
        """Returns the driver that goes on with the course, once, then None."""
        try:
            driver = self._owner.pop()
        except IndexError:
            return None
        # A timer that fires all the same calls take() in vain.
        if self._timer is not None:
            self._timer.cancel()
        driver.call.interrupt_with(None)
        return driver


class Slept(Wait):
    """Waits for some time."""

    __slots__ = ("_late",)

    def begin(self, driver: CallbackDriver, asked: Sleep) -> None:
        seconds, self._late = driver.call.nap(asked.seconds)
        # `soon`, and not a direct call: a call that was cancelled already runs this within interrupt_with().
        driver.call.interrupt_with(partial(driver.soon, self._over))
        self._timer = driver.later(seconds, self._over)

    def _over(self) -> None:
        driver = self.take()
        if driver is None:
            return
        try:
            driver.call.check(self._late)
        except RpcError as error:
            driver.go_on(None, error)
            del self, driver  # which the error's traceback would hold
        else:
            driver.go_on()


class Waited(Wait):
    """Waits for a connection, or for several attempts."""

    __slots__ = ("_late",)

    def begin(self, driver: CallbackDriver, asked: Waiting) -> None:
        self._late = asked.late  # not `asked`, whose future keeps this, and that the call's result
        future = self._begun = asked.future
        left = driver.call.time_left()
        self._timer = None if left is None else driver.later(left, future.cancel)
        driver.call.interrupt_with(partial(driver.soon, future.cancel))
        # Comes last: if the future is done the callback runs here and now, and cancels the timer.
        future.add_done_callback(partial(driver.come_back, self._over))

    def _over(self, future: Any) -> None:
        driver = self.take()
        if driver is None:
            return
        self._begun = None
        error = self._late() if future.cancelled() else future.exception()
        driver.go_on(None if error is not None else future.result(), error)

    def give_up(self) -> bool:
        given_up = super().give_up()
        if self._begun is not None:
            self._begun.cancel()
        return given_up
