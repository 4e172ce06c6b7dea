"""One connection, and what its two ends agreed on."""

# Any thread may use a connection. Its dicts change by single operations, so two threads at worst work out the same
# twice.

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Mapping
from time import monotonic
from typing import Any

from rrpc import _core
from rrpc._interface import Interface, untyped_request
from rrpc._options import time_until
from rrpc.errors import FailedPrecondition, RpcError, unsent

from .ejection import Record
from .privacy import is_private
from .versions import Agreement, agree

# Shared, as it holds nothing and isn't changed.
_BY_NAME = Agreement()


class Contract:
    """Fingerprints of a generated client's services, and their interfaces on request."""

    __slots__ = ("fingerprints", "interface")

    def __init__(self, fingerprints: Mapping[str, str], interface: Callable[[str], Interface]) -> None:
        self.fingerprints = fingerprints
        self.interface = interface


class Connection:
    """One ``_core.Client``, and what requests over it look like."""

    __slots__ = (
        "__weakref__",
        "_agreements",
        "_private",
        "address",
        "bound",
        "calls_in_flight",
        "core",
        "on_unusable",
        "record",
        "since",
        "usable",
    )

    def __init__(self, address: str, core: _core.Client) -> None:
        self.address = address
        self.core = core
        self.since = monotonic()
        self.usable: Callable[[], bool] = self.core.usable
        """Cheap: whether calls can be begun here."""
        self.calls_in_flight: Callable[[], int] = self.core.calls_in_flight
        """Cheap."""
        self.on_unusable: Callable[[Callable[[], None]], None] = self.core.on_unusable
        """Has a function called once, on whatever thread, soon after it isn't usable any more."""
        self.record: Record
        """Of the calls to its address; the channel's."""
        self.bound: dict[Hashable, Any] = {}
        """Results that stubs have worked out for this connection."""
        self._agreements: dict[Contract, Agreement] = {}
        self._private: bool | None = None

    @classmethod
    def to(cls, address: str, options: Mapping[str, Any], timeout: float | None) -> Connection:
        """Connect. The option ``serve`` is the server that takes the peer's calls."""
        options = dict(options)
        serve = options.pop("serve", None)
        core = _core.Client(address, options, timeout, serve)
        _log_choice(address, core)
        return cls(address, core)

    def agreement(self, contract: Contract | None, end: float | None = None) -> Agreement:
        """Returns the agreement on how the contract's services are called over this connection.

        If the server has another version of a service, the first call of ``agreement`` asks the server for
        its description, until ``end`` by the clock. Raises FailedPrecondition if the versions can't work
        together.
        """
        if contract is None or not contract.fingerprints:
            return _BY_NAME
        found = self._agreements.get(contract)
        if found is None:
            found = self._agreements[contract] = self._agree(contract, end)
        return found

    def check_private(self, method: str) -> None:
        """Raises FailedPrecondition if others may be able to read what goes over this connection."""
        if self._private is None:
            self._private = is_private(self.core.info())
        if not self._private:
            raise unsent(
                FailedPrecondition(
                    f"{method}(): the call wasn't sent, since {self.address} would carry its token in clear over "
                    f"{self.core.info()['transport']}; connect by TLS or shm, or pass allow_clear=True to ClientToken"
                )
            )

    def _agree(self, contract: Contract, end: float | None) -> Agreement:
        def describe(service: str) -> tuple[bytes, Any]:
            payload, _ = untyped_request((service,), {}, None)
            return self.core.call(b"rrpc.Reflection.describe", payload, None, None, time_until(end))

        hello = self.core.peer_hello()
        return agree(contract.fingerprints, hello, describe, contract.interface, self.address)

    def why_unusable(self) -> RpcError | None:
        """Returns the error that calls get here now, or None if calls can be begun. Cheap."""
        if not self.usable():
            try:
                self.core.start(b"", b"", None, None, 0.0)  # refused before anything is sent
            except RpcError as error:
                # It is kept, and its frames aren't to be.
                return error.with_traceback(None)
        return None

    def close(self) -> None:
        """Calls in flight fail with Unavailable."""
        self.core.close()


def _log_choice(address: str, core: _core.Client) -> None:
    # Whoever has not imported it hears nothing; an ending interpreter can't import.
    logging = sys.modules.get("logging") if sys.modules else None
    if logging is None or not address.startswith("rrpc://"):
        return
    logger = logging.getLogger("rrpc")
    if logger.isEnabledFor(logging.DEBUG):
        info = core.info()
        why_not = "".join(f"; not {name}: {reason}" for name, reason in info["why_not"].items())
        logger.debug("%s: over %s%s", info["address"], info["transport"], why_not)
