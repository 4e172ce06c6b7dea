"""rrpc-serve's configuration file: what it may say, what wins over it, and how it is told what is wrong in it."""

import re
from pathlib import Path

import pytest
from processes import ServeFactory, run_python, run_serve

import rrpc
from rrpc.cli.common import BadInput
from rrpc.cli.serving.serve_options import OPTIONS
from rrpc.cli.serving.settings import settings
from rrpc.cli.serving.show_settings import as_toml

MODULE = """
from pathlib import Path
from typing import Any
import rrpc

@rrpc.service
class Shelf:
    def __init__(self, size: int = 1, ratio: float = 1.0, path: Path | None = None, on: bool = False,
                 names: list[str] = [], extra: Any = None) -> None:
        self.all = [size, ratio, str(path), on, names, extra]

    @rrpc.method
    def show(self) -> list[Any]:
        return self.all

@rrpc.service(name="lab.Other")
class Other:
    def __init__(self, start: int) -> None:
        self.start = start

    @rrpc.method
    def get(self) -> int:
        return self.start
"""
FILE = """
# The file of the tests.
workers = 3
grace = 5
listen = ["tcp://127.0.0.1:0", "rrpc://127.0.0.1:0"]

[services."shelf:Shelf"]
size = 7
ratio = 2
path = "a/b"
on = true
names = [
    "x",
    "y",
]
extra = {deep = [1, 2.5]}

[services."shelf:Other"]
start = 1
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shelf.py").write_text(MODULE)
    (tmp_path / "serve.toml").write_text(FILE)
    return tmp_path


def test_a_file_serves(serve: ServeFactory, folder: Path) -> None:
    served = serve.start(["--config", "serve.toml", "--arg", "lab.Other.start=9"], 2, folder)
    assert [address.split(":")[0] for address in served.addresses] == ["tcp", "rrpc"]
    with rrpc.connect(served.addresses[1]) as client:
        assert client.call("Shelf.show") == [7, 2, "a/b", True, ["x", "y"], {"deep": [1, 2.5]}]
        assert client.call("lab.Other.get") == 9
    assert served.terminate() == 0


def test_flags_win_over_the_file(folder: Path) -> None:
    file = str(folder / "serve.toml")
    plain = settings(["--config", file])
    assert (plain.workers, plain.grace, plain.services) == (3, 5.0, ["shelf:Shelf", "shelf:Other"])
    other = settings(["shelf:Other", "--config", file, "--workers", "8", "--listen", "shm://one"])
    assert (other.workers, other.grace, other.services) == (8, 5.0, ["shelf:Other"])
    assert list(other.listen) == ["shm://one"]
    (folder / "on.toml").write_text("tracebacks = true")
    on = ["shelf:Shelf", "--config", str(folder / "on.toml")]
    assert settings(on).tracebacks is True
    assert settings([*on, "--no-tracebacks"]).tracebacks is False


def test_what_is_printed_reads_back_the_same(folder: Path) -> None:
    given = [
        "--config",
        "serve.toml",
        "--arg",
        "Shelf.size=8",
        "--arg",
        'lab.Other.start="\\',
        "--workers",
        "5",
    ]
    first = run_serve(*given, "--print-config", cwd=folder)
    assert first.returncode == 0, first.stderr
    for option in OPTIONS:
        assert re.search(rf"^(# )?{option.name} = ", first.stdout, re.MULTILINE), option.name
    (folder / "again.toml").write_text(first.stdout)
    assert run_serve("--config", "again.toml", "--print-config", cwd=folder).stdout == first.stdout
    asked = settings(["--config", str(folder / "serve.toml"), "--workers", "5"])
    again = settings(["--config", str(folder / "again.toml")])
    for option in OPTIONS:
        assert getattr(again, option.attribute) == getattr(asked, option.attribute)
    shelf, other = ({n: g.value for n, g in table.items()} for table in again.service_arguments.values())
    assert shelf == {
        "size": "8",
        "ratio": 2,
        "path": "a/b",
        "on": True,
        "names": ["x", "y"],
        "extra": {"deep": [1, 2.5]},
    }
    assert other == {"start": '"\\'}


def test_every_value_that_print_config_shows_is_one(tmp_path: Path) -> None:
    """Those that are commented out too."""
    text = as_toml(settings(["--print-config"]))
    (tmp_path / "all.toml").write_text(re.sub(r"^# (?=[a-z-]+ = )", "", text, flags=re.MULTILINE))
    made = settings(["a:B", "--config", str(tmp_path / "all.toml")])
    assert [option.name for option in OPTIONS if getattr(made, option.attribute) is None] == []


BAD: dict[str, tuple[str | bytes, str]] = {
    "syntax": ("workers = 3\ngrace = = 4\n", r"serve\.toml:2:9: Invalid value"),
    "no end": ('workers = 3\nlisten = [\n"x",\n', r"serve\.toml:3: .*end of document"),
    "twice": ("grace = 1\n\ngrace = 2\n", r"serve\.toml:3:\d+: Cannot overwrite"),
    "unknown": (
        "grace = 1\n\nworker = 3\n",
        r"serve\.toml:3: worker: there is no option 'worker'; did you mean 'workers'\?",
    ),
    "underscore": ('log_level = "info"', r"serve\.toml:1: log_level: .*did you mean 'log-level'\?"),
    "table": ("[log]\nlevel = 1", r"serve\.toml:1: log: there is no option 'log'; "),
    "type": ('# x\nworkers = "three"', r"serve\.toml:2: workers: 'three' isn't a whole number from 1 up"),
    "value": ("workers = 0", r"serve\.toml:1: workers: 0 isn't a whole number from 1 up"),
    "bool": ('\n\n\ntracebacks = "yes"', r"serve\.toml:4: tracebacks: 'yes' isn't true or false"),
    "bool as number": ("workers = true", r"workers: True isn't a whole"),
    "no list": ('listen = "tcp://127.0.0.1:0"', r"serve\.toml:1: listen: must be a list"),
    "in a list": ('workers=1\nlisten = [\n  "a",\n  5,\n]\n', r"serve\.toml:2: listen: 5 isn't text"),
    "empty list": ("listen = []", r"listen: the list is empty"),
    "choice": ('log-level = "loud"', r"serve\.toml:1: log-level: 'loud' isn't one of debug, info"),
    "size": ('pool-limit = "lots"', r"serve\.toml:1: pool-limit: 'lots' isn't a size"),
    "services": ("services = 3", r"serve\.toml:1: services: write a table"),
    "service": ("[services]\n'a:B' = 3", r'serve\.toml:2: services\."a:B": must be a table'),
    "service name": ("grace=1\n[services.shelf]\nx = 3", r"serve\.toml:2: services\.shelf: the key is"),
    "not utf-8": (b"grace = 1\n# \xff\n", r"serve\.toml:2: .*UTF-8"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_broken_file_names_line_and_key(tmp_path: Path, what: str) -> None:
    text, said = BAD[what]
    path = tmp_path / "serve.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadInput) as caught:
        settings(["a:B", "--config", str(path)])
    assert re.search(said, str(caught.value)), caught.value
    assert "\n" not in str(caught.value)


BAD_SERVICES = {
    "no module": (
        '[services."nothing:Here"]',
        r'serve\.toml:1: services\."nothing:Here": there is no module',
    ),
    "no class": (
        '\n[services."shelf:Nope"]',
        r'serve\.toml:2: services\."shelf:Nope": .*it has Other, Shelf',
    ),
    "no argument": ('[services."shelf:Shelf"]\n\nsise = 3', r'serve\.toml:3: .*"\.sise: Shelf has no such'),
    "argument": ('[services."shelf:Shelf"]\nsize = [\n1]', r'serve\.toml:2: .*"\.size: not a valid int'),
    "text": ('[services."shelf:Shelf"]\nsize = "big"', r'serve\.toml:2: .*"\.size: not a valid int'),
    "list": ('[services."shelf:Shelf"]\nnames = "x"', r'serve\.toml:2: .*"\.names: a list.* given as text'),
    "address": (
        'listen = [\n"x"]\n[services."shelf:Shelf"]',
        r"serve\.toml:1: listen: address 'x' has no scheme",
    ),
    "transports": (
        'grace = 1\ntransports = "rdma"\n[services."shelf:Shelf"]',
        r"serve\.toml:2: transports: .*it may list",
    ),
    "missing": ('[services."shelf:Other"]', r"lab\.Other needs --arg start="),
}


@pytest.mark.parametrize("what", BAD_SERVICES)
def test_a_broken_table_of_a_service(folder: Path, what: str) -> None:
    text, said = BAD_SERVICES[what]
    (folder / "serve.toml").write_text(text)
    done = run_serve("--config", "serve.toml", cwd=folder)
    assert done.returncode == 2
    assert re.fullmatch(f"rrpc-serve: .*{said}.*\n", done.stderr), done.stderr


def test_a_file_that_isn_t_there(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"--config .*none\.toml: No such file"):
        settings(["a:B", "--config", str(tmp_path / "none.toml")])


def test_nothing_to_serve(tmp_path: Path) -> None:
    (tmp_path / "serve.toml").write_text("workers = 2")
    done = run_serve("--config", "serve.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert "name a service: module:Service" in done.stderr


def test_a_plain_start_reads_no_toml() -> None:
    """tomllib, and what else only some options need, is imported by those alone."""
    code = (
        "import sys, rrpc.cli.serve; print(*{'tomllib', 'prometheus_client', 'http.server'} & {*sys.modules})"
    )
    assert run_python(code).stdout.split() == []
