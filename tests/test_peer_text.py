"""Text that a peer chose: whatever its bytes, what is raised is an RpcError, and the channel goes on."""

import struct
from collections.abc import Callable

import pytest
from raw_peer import GO_AWAY, GOODBYE, REPLY, frame, hello, message, setup

import rrpc

LATIN = "café".encode("latin-1")  # isn't UTF-8
GREETING = setup() + hello()


def reply(call_id: int, status: int, text: bytes, payload: bytes = b"", data: int = 1) -> bytes:
    head = struct.pack("<QBBHHHII", call_id, status, 0, 0, 0xFFFF, 0, len(text), 0)
    return message(REPLY, head + text + payload, data=data)


def test_an_errors_text(impostor: Callable[..., str]) -> None:
    address = impostor(GREETING, then=reply(1, 13, LATIN))
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
    address = impostor(GREETING, then=message(GO_AWAY, LATIN) + reply(1, 0, b"", b"\x05"))
    with rrpc.connect(address, timeout=10.0) as client:
        patient = client.with_options(wait_for_ready=True)
        for _ in range(3):
            assert patient.call("Lab.add", 2, 3) == 5
