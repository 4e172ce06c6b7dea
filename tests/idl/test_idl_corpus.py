"""The files in idl/corpus: what good ones mean, in canonical form, and what exactly is said of bad ones.

``python tests/idl/test_idl_corpus.py`` writes the outputs anew; look at what changed before it is committed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rrpc.idl import IdlError, load, parse, print_module

CORPUS = Path(__file__).resolve().parents[2] / "idl" / "corpus"


def files(folder: str) -> list[str]:
    return sorted(f"{folder}/{path.name}" for path in (CORPUS / folder).glob("*.rrpc"))


def output(file: str) -> Path:
    return CORPUS / file.replace(".rrpc", ".out")


def good(file: str) -> str:
    return print_module(load(file))


def bad(file: str) -> str:
    try:
        load(file)
    except IdlError as error:
        return f"{error}\n"
    raise AssertionError(f"{file} has nothing wrong")


@pytest.fixture(autouse=True)
def _there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CORPUS)


@pytest.mark.parametrize("file", files("good"))
def test_good(file: str) -> None:
    text = output(file).read_text()
    assert good(file) == text
    assert parse(text, file) == load(file)
    assert print_module(parse(text, file)) == text


@pytest.mark.parametrize("file", files("bad"))
def test_bad(file: str) -> None:
    assert bad(file) == output(file).read_text()


def test_no_output_without_its_file() -> None:
    known = {output(file) for folder in ("good", "bad") for file in files(folder)}
    assert set(CORPUS.rglob("*.out")) == known


if __name__ == "__main__":
    os.chdir(CORPUS)
    for folder, made in (("good", good), ("bad", bad)):
        for name in files(folder):
            output(name).write_text(made(name))
