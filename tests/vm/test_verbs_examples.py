"""examples/nearest as a user runs it, over RDMA; and rrpc://, which moves up to RDMA by itself."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from guest_network import down
from lab import LAB
from ports import own_port
from processes import ROOT, ServeFactory
from under_way import slowly

import rrpc

NEAREST = ROOT / "examples" / "nearest"
K = 5
ASKED = 200  # of 1797


def _digits() -> Path:
    """The table in scikit-learn's wheel, whose import takes half a minute here."""
    package = importlib.util.find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"


def test_nearest_finds_what_brute_force_finds(serve: ServeFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over one adapter: tests/helpers/over_verbs.py has what differs between them."""
    table = _digits()
    arguments = [
        "nearest:Nearest",
        "--arg",
        f"table={table}",
        "--listen",
        f"verbs://10.9.0.1:{own_port()}",
        "--insecure",
    ]
    served = serve.start(arguments, 1, NEAREST)
    digits = np.loadtxt(table, np.float32, delimiter=",")[:, :-1]
    monkeypatch.syspath_prepend(str(NEAREST))
    import nearest_client  # type: ignore[import-not-found]

    asked = np.clip(digits + np.random.default_rng(7).integers(-2, 3, digits.shape), 0, 16).astype(np.float32)
    with nearest_client.NearestClient(
        served.address, connect_timeout=slowly(30.0), timeout=slowly(60.0)
    ) as client:
        assert client.info()["transport"].startswith("verbs")
        assert client.size() == len(digits)
        assert client.count(asked) == len(asked)
        ids, distances = client.search(asked[:ASKED], K)
        repeated = client.repeated(5000)
        placed = client.repeated(5000, out=np.empty((5000, 64), np.float32))
    every = np.linalg.norm(asked[:ASKED, None, :] - digits[None, :, :], axis=2)
    assert np.allclose(distances, np.sort(every, axis=1)[:, :K], rtol=1e-4)
    assert np.allclose(np.take_along_axis(every, ids, axis=1), distances, rtol=1e-4)
    assert np.array_equal(repeated, digits[np.arange(5000) % len(digits)])
    assert np.array_equal(placed, repeated)


# rrpc://


def greeting(address: str, **options: Any) -> dict[str, Any]:
    with rrpc.connect(address, timeout=slowly(60.0), connect_timeout=slowly(30.0), **options) as client:
        assert client.call("Lab.add", 1) == 2
        assert client.call("Lab.total", np.ones(100_000)) == 100_000
        return client.info()


def test_rrpc_moves_up_to_verbs_and_says_why_when_it_cannot(serve: ServeFactory) -> None:
    served = serve(LAB, "Lab", listen="rrpc://10.9.0.1:0", module="lab_service")
    info = greeting(served.address, transports=["verbs", "tcp"])
    assert info["transport"].startswith("verbs")
    assert "verbs" not in info["why_not"]
    assert greeting(served.address)["transport"] == "shm"
    assert greeting(served.address, transports=["tcp"])["transport"] == "tcp"
    asked = f"{served.address}?device=rxe0&traffic_class=104"
    assert greeting(asked, transports=["verbs"])["traffic_class"] == "104"
    assert greeting(asked)["transport"] == "shm"  # which has no use of it
    with pytest.raises(rrpc.InvalidArgument, match="unknown option 'color'"):
        greeting(f"{served.address}?color=red", transports=["verbs", "tcp"])
    with down("rx0", "iw0"):
        info = greeting(served.address, transports=["verbs", "tcp"])
        assert info["transport"] == "tcp"
        print(info["why_not"])
        assert "down" in info["why_not"]["verbs"] or "RDMA" in info["why_not"]["verbs"]
