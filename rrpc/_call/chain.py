"""One call's way through its interceptors. The chain has no I/O, so that one serves every style of calling."""

# A chain belongs to one call and has no lock. One thread at a time carries it out, though not always the same one: a
# driver in callbacks goes on where the last wait ended.

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any

from .steps import Sleep
from .stream_hooks import StreamHooks

Steps = Generator[Any, Any, Any]
Link = Callable[[Any], Steps]

CALLS_MAX = 1000
"""How often a link may yield its call, and so the most attempts of a retry policy, which is a link."""
_ENDED = object()
REFUSED = object()
"""Given to ``drive`` for an awaitable, where nothing can be awaited."""


class Chain:
    """A stack of generators, the outermost interceptor's at the bottom.

    ``step`` runs them until something is to be done that isn't theirs, and gives that: ``call`` (make it), a
    ``Sleep``, or an awaitable. What came of it goes into the next ``step``. Once ``done``, what
    ``step`` gave is the call's result, and what it raised the call's error.

    Where there is an ``innermost`` link, that makes the call; it isn't an interceptor and may yield anything.
    """

    __slots__ = ("_begun", "_counts", "_links", "_once", "_outer", "_stack", "call", "done", "hooks")

    def __init__(
        self,
        links: Sequence[Link],
        call: Any,
        *,
        innermost: Link | None = None,
        once: bool = False,
        hooks: StreamHooks | None = None,
    ) -> None:
        """``once``: an interceptor may not yield the call a second time. ``hooks``: of a call with streams."""
        self.call = call
        self.done = False
        self.hooks = hooks
        self._outer = len(links)  # interceptors
        self._links = links if innermost is None else (*links, innermost)
        self._once = once
        self._begun = False
        self._stack: list[Steps] = []
        self._counts: list[int] = []  # how often each has yielded the call

    @property
    def depth(self) -> int:
        """Returns the number of interceptors entered: the depth of the running one, counted from 1."""
        return len(self._stack)

    def step(self, value: Any = None, error: BaseException | None = None) -> Any:
        """Go on with what came of the last step."""
        try:
            if not self._begun:
                self._begun = True
                error = self._enter()
            # Each round resumes the innermost generator. What it ends with goes to the next one outside; where it
            # yields the call, the next one inside begins.
            while self._stack:
                asked, value, error = self._resume(value, error)
                if asked is _ENDED:
                    continue
                # Nothing checks the innermost link: it isn't a user's, and what it yields is for the driver.
                if len(self._stack) > self._outer or type(asked) is Sleep:
                    return asked
                if asked is not self.call and isinstance(asked, Awaitable):
                    return asked
                error = self._fault(asked)
                if error is not None:
                    # The faulty link is closed without being told; those outside of it get the error.
                    self._leave()
                elif len(self._stack) == len(self._links):
                    return asked
                else:
                    error = self._enter()
            self.done = True
            if error is not None:
                raise error
            return value
        finally:
            error = None  # whose traceback holds this frame

    def refuse(self, awaitable: Any) -> Any:
        """Ends the interceptor that yielded an awaitable where nothing can be awaited.

        Continues the chain with a TypeError and returns its next step, like ``step``.
        """
        if hasattr(awaitable, "close"):
            awaitable.close()  # a coroutine complains when it is never awaited
        error = TypeError(
            f"{self._where()} yielded an awaitable ({type(awaitable).__name__}), but nothing can be awaited here: "
            "this call isn't made or handled in an event loop; rrpc.interceptors.Sleep waits everywhere"
        )
        self._leave()
        return self.step(None, error)

    def close(self) -> None:
        """End a call that nobody waits for any more: what the interceptors have in a ``finally`` runs."""
        while self._stack:
            self._leave()
        self.done = True

    def _enter(self) -> BaseException | None:
        """Begin the next interceptor; gives the error where there can be none."""
        link = self._links[len(self._stack)]
        # Nothing of a generator function runs here. Anything else that was given as a link may raise.
        try:
            steps = link(self.call)
        except BaseException as raised:
            return raised
        if not isinstance(steps, types.GeneratorType):
            return _no_generator(link, steps)
        self._stack.append(steps)
        self._counts.append(0)
        return None

    def _resume(self, value: Any, error: BaseException | None) -> tuple[Any, Any, BaseException | None]:
        """Run the innermost interceptor on; gives (what it yielded or _ENDED, its value, its error)."""
        steps = self._stack[-1]
        try:
            return (steps.send(value) if error is None else steps.throw(error)), None, None
        except StopIteration as stop:
            value, error = stop.value, None
        except BaseException as raised:
            # A StopIteration that passes through a generator comes out as the cause of a RuntimeError.
            passed = isinstance(error, StopIteration) and raised.__cause__ is error
            value, error = None, error if passed else raised
        try:
            self._leave()
            return _ENDED, value, error
        finally:
            value = error = None

    def _leave(self) -> None:
        steps = self._stack.pop()
        self._counts.pop()
        # A `finally` of the user's code runs here. What it raises is logged, as the call's own outcome has to go on.
        try:
            steps.close()
        except BaseException as error:
            import logging

            name = _name(self._links[len(self._stack)])
            logging.getLogger("rrpc.interceptors").error(
                "%s() raised while it was closed", name, exc_info=error
            )

    def _fault(self, asked: Any) -> BaseException | None:
        """Returns an error if the running interceptor didn't yield the call, or may not yield it again."""
        if asked is not self.call:
            return TypeError(
                f"{self._where()} yielded {_short(asked)}: an interceptor yields its call, "
                "rrpc.interceptors.Sleep(seconds) or, in asyncio, an awaitable"
            )
        self._counts[-1] += 1
        if self._once and self._counts[-1] > 1:
            return RuntimeError(f"{self._where()} yielded the call a second time, but a handler runs once")
        if self._counts[-1] > CALLS_MAX:
            return RuntimeError(f"{self._where()} yielded the call {CALLS_MAX} times without returning")
        if self.hooks is not None:
            self.hooks.keep_to(len(self._stack))
        return None

    def _where(self) -> str:
        frame = getattr(self._stack[-1], "gi_frame", None)
        line = f" in line {frame.f_lineno}" if frame is not None else ""
        return f"{_name(self._links[len(self._stack) - 1])}(){line}"


def drive(chain: Chain, do: Callable[[Any], Any]) -> Any:
    """Carries a chain out to its end in the calling thread, and returns its result.

    ``do`` does what a step asks for and gives what came of it, or ``REFUSED`` for what can't be done here.
    """
    asked = chain.step()
    while not chain.done:
        value = None
        try:
            value = do(asked)
        except BaseException as error:
            asked = chain.step(None, error)
        else:
            asked = chain.refuse(asked) if value is REFUSED else chain.step(value)
    return asked


async def drive_async(chain: Chain, do: Callable[[Any], Awaitable[Any]], asked: Any) -> Any:
    """Carries a chain out like ``drive``, but in a coroutine. ``asked`` is what its first step gave."""
    while not chain.done:
        value = None
        try:
            value = await do(asked)
        except BaseException as error:
            asked = chain.step(None, error)
        else:
            asked = chain.step(value)
    return asked


def follow(steps: Steps, do: Callable[[Any], Any]) -> Any:
    """Carries out in the calling thread the steps of a generator that is no interceptor. Returns its result."""
    try:
        asked = next(steps)
        while True:
            value = None
            try:
                value = do(asked)
            except BaseException as error:
                asked = steps.throw(error)
            else:
                asked = steps.send(value)
    except StopIteration as stop:
        return stop.value


async def follow_async(steps: Steps, do: Callable[[Any], Awaitable[Any]]) -> Any:
    """Carries out steps like ``follow``, but in a coroutine."""
    try:
        asked = next(steps)
        while True:
            value = None
            try:
                value = await do(asked)
            except BaseException as error:
                asked = steps.throw(error)
            else:
                asked = steps.send(value)
    except StopIteration as stop:
        return stop.value


def _name(link: Link) -> str:
    owner = getattr(link, "__self__", None)
    name = getattr(link, "__name__", repr(link))
    return name if owner is None else f"{type(owner).__module__}.{type(owner).__qualname__}.{name}"


def _no_generator(link: Link, got: Any) -> TypeError:
    if isinstance(got, Awaitable):
        if isinstance(got, types.CoroutineType):
            # A coroutine that is dropped without this warns that it was never awaited.
            got.close()
        why = "is `async def`: leave out `async`, and yield what would be awaited"
    elif isinstance(got, types.AsyncGeneratorType):
        why = "is `async def`: leave out `async`; a generator without it serves asyncio too"
    else:
        why = (
            f"has no `yield` in it and gave {_short(got)}: write `result = yield call`, then `return result`"
        )
    return TypeError(f"{_name(link)}() {why}")


def _short(thing: Any) -> str:
    text = repr(thing)
    return text if len(text) <= 80 else f"{text[:77]}..."
