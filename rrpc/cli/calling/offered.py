"""The services that a server offers, read by reflection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import rrpc
from rrpc import schema
from rrpc._channel.versions import read_answer
from rrpc._client import begin_call
from rrpc._client.client import Untyped
from rrpc._options import did_you_mean
from rrpc.cli.common import BadInput


def _unreadable(about: str, why: object) -> rrpc.Internal:
    return rrpc.Internal(f"what the server says of {about} can't be read: {why}")


class _Question(Untyped):
    """A call of ``rrpc.Reflection``. The answer may be a hostile server's."""

    def __init__(self, about: str, method: str, arguments: Sequence[str]) -> None:
        super().__init__(method, arguments, {}, None)
        self._about = about

    def decode(self, payload: bytes, blocks: list[Any] | None, message: Any) -> Any:
        try:
            return read_answer(payload, blocks)
        except rrpc.RpcError:
            raise
        except ValueError as error:
            raise _unreadable(self._about, error) from None


class Offered:
    """The services of a server by reflection; rrpc.Unimplemented where it has none. BadInput names what isn't there."""

    def __init__(self, client: rrpc.Client) -> None:
        self._client = client
        self._names: list[str] | None = None

    def names(self) -> list[str]:
        """Returns the names of all services, with the built-in ones last."""
        if self._names is None:
            names = self._ask("its services", "services")
            if type(names) is not list or not all(type(name) is str for name in names):
                raise _unreadable("its services", "not a list of names")
            self._names = names
        return self._names

    def service(self, name: str) -> schema.Service:
        """A service's interface."""
        if name not in self.names():
            raise BadInput(f"there is no service {name!r}{did_you_mean(name, self.names())}")
        described = self._ask(name, "describe", name)
        try:
            if type(described) is not dict:
                raise TypeError(f"it is {type(described).__name__}")
            return schema.from_data(described["service"])
        except (KeyError, TypeError, ValueError) as error:
            raise _unreadable(name, error) from None

    def _ask(self, about: str, method: str, *arguments: str) -> Any:
        question = _Question(about, f"rrpc.Reflection.{method}", arguments)
        return begin_call.call(self._client._prepare(question, None, None))

    def method(self, target: str) -> tuple[schema.Service, schema.Method]:
        """Returns the service and the method that ``service.method`` names. Raises BadInput."""
        service, dot, name = target.rpartition(".")
        if not dot:
            raise BadInput(f"{target!r} is no method: write service.method{self._owner(name)}")
        found = self.service(service)
        for method in found.methods:
            if method.name == name:
                return found, method
        names = [method.name for method in found.methods]
        raise BadInput(f"{service} has no method {name!r}{did_you_mean(name, names)}")

    def _owner(self, method: str) -> str:
        """Returns a hint with the full name of the method if exactly one service has it, otherwise ""."""
        owners = [
            f"{name}.{method}"
            for name in self.names()
            if any(known.name == method for known in self.service(name).methods)
        ]
        return f"; did you mean {owners[0]}?" if len(owners) == 1 else ""
