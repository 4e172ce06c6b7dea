"""The faults that are done to rrpc and to grpcio side by side: a few, so that the comparison goes on working."""

import pytest
from faults.compare import COLUMNS, FAULTS, run, table


@pytest.mark.slow
def test_a_few_faults() -> None:
    pytest.importorskip("grpc")
    few = [fault for fault in FAULTS if fault.name in ("server killed, call under way", "silence, deadline")]
    assert len(few) == 2
    cells = run(1, 1, few)
    assert {which for _, which in cells} == set(COLUMNS)
    for (_, (system, _)), cell in cells.items():
        assert cell.cases == 1
        assert system == "grpcio" or not cell.wrong, cell.wrong
    assert table(cells, few).count("\n") == 3
