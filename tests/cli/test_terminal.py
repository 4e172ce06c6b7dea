"""What a server says is text on a terminal of its clients, and no orders to it."""

from collections.abc import Callable, Iterator

import pytest
from rrpc_call import Run

import rrpc
from rrpc._prose import for_terminal
from rrpc.cli import gen

# Sets a title, erases the line, turns what follows around; and what C1 makes of it in one byte.
ORDERS = "\x1b]0;owned\x07\x9b2K\u202e\r"
SHOWN = r"\u001b]0;owned\u0007\u009b2K\u202e"


@rrpc.service
class Painter:
    """Paints."""

    @rrpc.method
    def paint(self) -> str:
        """Paints \x1b]0;owned\x07\x9b2K\u202e walls."""
        return f"{ORDERS}red"

    @rrpc.method
    def stripes(self) -> Iterator[str]:
        yield f"{ORDERS}blue"

    @rrpc.method
    def spill(self) -> None:
        raise ValueError(f"{ORDERS}green")


@pytest.fixture
def painter(new_address: Callable[[str], str], capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    with rrpc.serve(Painter(), listen=new_address("tcp"), tracebacks=True) as server:
        yield Run(server.addresses[0], capsys)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["Painter.paint"], f"{SHOWN}\\rred"),
        (["Painter.stripes"], f"{SHOWN}\\rblue"),
        (["Painter.spill"], f"{SHOWN}\\rgreen"),
        (["list"], "Paints ?]0;owned??2K? walls."),
        (["describe"], "Paints ?]0;owned??2K? walls."),
    ],
)
def test_orders_to_a_terminal_are_shown(painter: Run, arguments: list[str], words: str) -> None:
    _, out, err = painter(*arguments)
    assert words in out + err
    assert is_harmless(out + err)


def is_harmless(text: str) -> bool:
    return all(letter.isprintable() or letter in "\n\t" for letter in text)


@pytest.mark.parametrize("idl", [[], ["--idl"]])
def test_generated_text_has_none(painter: Run, capsys: pytest.CaptureFixture[str], idl: list[str]) -> None:
    assert gen.main([painter.address, *idl]) == 0
    text = capsys.readouterr().out
    assert "Paints ?]0;owned??2K? walls." in text
    assert is_harmless(text)


def test_other_text_stays() -> None:
    text = "a\tb\nd\u00e9j\u00e0 vu\u00a0! \U0001f469\u200d\U0001f4bb"
    assert for_terminal(text) == text
    assert for_terminal("\ud800") == r"\ud800"
