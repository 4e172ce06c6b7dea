"""What a caller says in the metadata of a traced call may be any text: the call itself goes on as without it."""

import msgpack
import pytest

import rrpc
from rrpc.metadata import TRACE, unpack


@rrpc.service
class Plain:
    @rrpc.method
    def one(self) -> int:
        return 1


# Whether the server answers it with its part of the trace.
ASKED = {
    "4000": True,
    "0" * 10: False,
    "9" * 10: True,
    "9" * 11: False,
    "9" * 5000: False,
    "-1": False,
    "": False,
}


@pytest.mark.parametrize("asked", ASKED, ids=lambda text: f"{text[:4]} of {len(text)}")
def test_any_text_leaves_the_call_alone(asked: str) -> None:
    with (
        rrpc.serve(Plain(), listen="tcp://127.0.0.1:0") as server,
        rrpc.connect(server.addresses[0]) as client,
    ):
        connection = client._channel.ready
        assert connection is not None
        call = connection.core.start(b"Plain.one", b"\x90", None, None, 20.0, {TRACE: asked}, True)
        payload, _ = call.result()
        assert msgpack.unpackb(payload) == 1
        assert (TRACE in unpack(call.metadata())) is ASKED[asked]
