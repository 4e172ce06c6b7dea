"""docs/streams.md: its code runs."""

import re
from pathlib import Path

from processes import ROOT, ServeFactory, eventually, patience, run, run_command

import rrpc

PAGE = (ROOT / "docs" / "streams.md").read_text()
FILES: dict[str, str] = {
    block.split("\n", 1)[0].removeprefix("# "): block
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
}


def test_the_code_of_the_page_runs(serve: ServeFactory, tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    run_command("gen", "readings:Readings", "-o", "readings_client.py", cwd=tmp_path)
    served = serve(FILES["readings.py"], "Readings", module="readings", listen="rrpc")
    done = run("use_readings.py", served.address, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "Reading(sensor='roof', value=999.0)"
    done = run("async_readings.py", served.address, cwd=tmp_path)
    assert done.stdout.count("Reading(") == 1002


def test_frames_and_rows_land_where_the_page_says(serve: ServeFactory, tmp_path: Path) -> None:
    for name in ("relay.py", "use_relay.py"):
        (tmp_path / name).write_text(FILES[name])
    run_command("gen", "relay:Relay", "-o", "relay_client.py", cwd=tmp_path)
    served = serve(FILES["relay.py"], "Relay", module="relay", listen="rrpc")
    done = run("use_relay.py", served.address, cwd=tmp_path)
    assert done.stdout == "b'a header' 1048576 2016.0\n"


def test_the_board_sends_from_anywhere(serve: ServeFactory) -> None:
    served = serve(FILES["board.py"], "Board", module="board", listen="rrpc")
    client = rrpc.connect(served.address, timeout=patience(20))
    first, left = (rrpc.open_stream(client, "Board.read", topic) for topic in ("news", ""))
    with client, first, left:
        assert next(first) == "welcome to news"
        assert next(left) == "welcome to "
        eventually(lambda: client.call("Board.post", "one") == 2)
        left.close()
        eventually(lambda: client.call("Board.post", "two") == 1)
        assert "one" in [next(first), next(first)]
