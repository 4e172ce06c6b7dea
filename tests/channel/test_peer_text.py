"""Text that a peer chose: whatever its bytes, what is raised is an RpcError, and the channel goes on."""

from collections.abc import Callable

import pytest
from raw_peer import GO_AWAY, GOODBYE, REPLY, frame, hello, message, reply, setup

import rrpc

LATIN = "café".encode("latin-1")  # isn't UTF-8
GREETING = setup() + hello()


def test_an_errors_text(impostor: Callable[..., str]) -> None:
    address = impostor(GREETING, then=message(REPLY, reply(1, status=13, text=LATIN), data=1))
    with rrpc.connect(address, timeout=10.0) as client, pytest.raises(rrpc.Internal, match=r"^caf\ufffd$"):
        client.call("Lab.add", 1, 2)


def test_a_goodbyes_reason(impostor: Callable[..., str]) -> None:
    address = impostor(GREETING, then=frame(GOODBYE, b"one line\nof " + LATIN))
    with rrpc.connect(address, timeout=10.0) as client:
        for _ in range(3):
            with pytest.raises(rrpc.Unavailable, match=r"closed the connection: one line\?of caf\ufffd$"):
                client.call("Lab.add", 1, 2)


def test_a_go_aways_reason(impostor: Callable[..., str]) -> None:
    """The channel connects again for the next call."""
    address = impostor(GREETING, then=message(GO_AWAY, LATIN) + message(REPLY, reply(1, b"\x05"), data=1))
    with rrpc.connect(address, timeout=10.0) as client:
        patient = client.with_options(wait_for_ready=True)
        for _ in range(3):
            assert patient.call("Lab.add", 2, 3) == 5
