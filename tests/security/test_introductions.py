"""The way from TLS to shared memory is for those alone whom TLS has let in."""

from pathlib import Path
from typing import Any

import pytest
from certificates import Parties
from tls_service import Vault

import rrpc
from rrpc import _core


def _connection(address: str, **options: Any) -> _core.Client:
    return _core.Client(address, _core.default_options() | options, 10.0)


def test_the_door_beside_tls_is_closed_to_others(tmp_path: Path) -> None:
    parties = Parties.meet(tmp_path)
    with rrpc.serve(Vault(), listen="rrpcs://127.0.0.1:0", **parties.of_server()) as server:
        over_tls = _connection(server.addresses[0], transports="tcp", **parties.of_client())
        beside = over_tls.peer_hello()[b"shm"].decode()
        with pytest.raises(rrpc.RpcError, match="this way to the server is for clients that TLS has let in"):
            rrpc.connect(f"shm://{beside}")
        with rrpc.connect(server.addresses[0], **parties.of_client()) as client:
            assert client.info()["transport"] == "shm"
            assert client.call("Vault.add", 1, 2) == 3
        over_tls.close()


def test_shared_memory_that_was_asked_for_is_open(tmp_path: Path) -> None:
    """An address of its own is no way from TLS: the kernel says who calls there."""
    parties = Parties.meet(tmp_path)
    listen = ["rrpcs://127.0.0.1:0", f"shm://{tmp_path}/open"]
    with (
        rrpc.serve(Vault(), listen=listen, **parties.of_server()) as server,
        rrpc.connect(server.addresses[1]) as client,
    ):
        assert client.call("Vault.add", 1, 2) == 3
