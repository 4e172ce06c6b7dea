"""docs/streams.md: its code runs."""

import re
from pathlib import Path

from processes import ROOT, ServeFactory, run, run_command

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
