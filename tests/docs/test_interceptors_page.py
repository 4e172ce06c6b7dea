"""docs/interceptors.md: its code runs, in order."""

import re

import pytest
from processes import ROOT

import rrpc

PAGE = (ROOT / "docs" / "interceptors.md").read_text()


def test_its_code_runs() -> None:
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, names)
    client, server = names["client"], names["server"]
    assert isinstance(client, rrpc.Client)
    assert isinstance(server, rrpc.Server)
    with server, client:
        assert client.call("Words.count", "one two") == 2
        with pytest.raises(rrpc.ResourceExhausted, match="has called often enough"):
            client.call("Words.count", "")


def test_it_names_whatever_there_is() -> None:
    names = {
        name for name in rrpc.interceptors.__all__ if name.startswith(("Client", "Server", "Retry", "Sleep"))
    }
    assert sorted(name for name in names if name not in PAGE) == []
