"""The interceptors that rrpc-serve is told of."""

from __future__ import annotations

from typing import Any

from rrpc.interceptors import ServerInterceptor

from .common import BadInput, find, user_line


def interceptors(options: Any) -> list[ServerInterceptor]:
    """Returns the interceptors that ``--interceptor`` names. Raises BadInput."""
    place = options.where["interceptor"]() if "interceptor" in options.where else "--interceptor"
    made = []
    for target in options.interceptor or ():
        try:
            made.append(_made(target))
        except BadInput as error:  # noqa: PERF203
            raise BadInput(f"{place}: {error}") from error
    return made


def _made(target: str) -> ServerInterceptor:
    found = find(target, "module:NAME")
    if not isinstance(found, ServerInterceptor) and callable(found):
        try:
            found = found()
        except Exception as error:
            raise BadInput(f"making {target}: {user_line(error)}") from error
    if not isinstance(found, ServerInterceptor):
        raise BadInput(f"{target} is no rrpc.ServerInterceptor, nor makes one, but {type(found).__name__}")
    return found
