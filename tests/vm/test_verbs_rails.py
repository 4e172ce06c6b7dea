"""Connections with rails over one adapter, which stands for two: tests/vm/two_ports.py has two of them."""

import numpy as np
import pytest
from lab import LAB
from lab_service import Lab
from processes import Served, ServeFactory, eventually
from under_way import slowly

import rrpc

HOSTS = {"rxe": "10.9.0.1", "siw": "10.9.1.1"}
ARRAY = np.arange(6 << 20, dtype=np.uint8)


def serve_twice(serve: ServeFactory, host: str, args: list[str]) -> Served:
    return serve(LAB, "Lab", listen=[f"verbs://{host}:0"] * 2, module="lab_service", args=args)


def with_rail(served: Served, rail: str) -> str:
    return f"{served.address}?rail={rail.removeprefix('verbs://')}"


@pytest.mark.parametrize("adapter", HOSTS)
def test_arrays_go_by_the_rail_too_both_ways(serve: ServeFactory, adapter: str) -> None:
    served = serve_twice(serve, HOSTS[adapter], [])
    with rrpc.connect(with_rail(served, served.addresses[1]), timeout=slowly(60.0)) as client:

        def goes_by_rails() -> bool:
            assert np.array_equal(client.call("Lab.echo", ARRAY), ARRAY)
            counts = client.stats(), client.call("Lab.counts")
            return all(each["bytes_read_by_rails"] > 0 for each in counts)

        eventually(goes_by_rails, slowly(30.0), "an argument and a result go by the rail")
        assert client.info()["rails"] == f"{served.addresses[1].removeprefix('verbs://')} connected"
        assert client.call("Lab.counts")["exposures_live"] == 0
        assert rrpc.stats()["exposures_live"] == 0


def test_a_rail_that_is_refused_takes_nothing_with_it(serve: ServeFactory) -> None:
    served = serve_twice(serve, HOSTS["rxe"], [])
    other = serve_twice(serve, HOSTS["rxe"], [])
    with rrpc.connect(with_rail(served, other.address), timeout=slowly(60.0)) as client:
        eventually(lambda: "token" in client.info()["rails"], slowly(30.0), "the rail is refused")
        assert np.array_equal(client.call("Lab.echo", ARRAY), ARRAY)
        assert client.stats()["bytes_read_by_rails"] == 0
    with rrpc.connect(other.address, timeout=slowly(60.0)) as client:
        assert client.call("Lab.add", 1) == 2


def test_a_server_that_shares_receives_takes_no_rails(serve: ServeFactory) -> None:
    served = serve_twice(serve, HOSTS["rxe"], ["--shared-receive-slots", "2048"])
    with rrpc.connect(with_rail(served, served.addresses[1]), timeout=slowly(60.0)) as client:
        assert client.info()["rails"].endswith(" not connected: the server takes no rails")
        assert client.call("Lab.add", 1) == 2


def test_rails_are_refused_where_they_are_none() -> None:
    with pytest.raises(rrpc.InvalidArgument, match=r"rail= is for clients"):
        rrpc.Server(Lab()).listen("verbs://10.9.0.1:0?rail=10.9.1.1:0")
    with pytest.raises(rrpc.InvalidArgument, match="a connection with TLS has no rails"):
        rrpc.connect("verbs://10.9.0.1:1?rail=10.9.1.1:1", tls=True, rdma_security="sign")
