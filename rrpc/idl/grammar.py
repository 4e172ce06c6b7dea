"""The grammar, compiled once: lexer and LALR parser. The only module that imports lark."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from lark import Lark, Token
from lark.exceptions import UnexpectedToken
from lark.parsers.lalr_interactive_parser import InteractiveParser

from .tree import Builder

__all__ = ["Grammar", "InteractiveParser", "Token", "UnexpectedToken", "grammar"]

_HERE = Path(__file__).parent


def _file() -> Path:
    """The checkout's own grammar; an installed package has a copy beside this file."""
    own = _HERE.parents[1] / "idl" / "rrpc.lark"
    return own if own.is_file() else _HERE / "rrpc.lark"


@dataclass(frozen=True)
class Grammar:
    """The lexer and the parser of .rrpc files."""

    lexer: Lark
    parser: Lark

    def interactive(self) -> InteractiveParser:
        """Returns a parser of one statement that takes token after token."""
        return self.parser.parse_interactive(start="statement")

    def spelling(self, terminal: str) -> str | None:
        """Returns the spelling of a terminal in a file, or None if it has several."""
        pattern = self.parser.get_terminal(terminal).pattern
        return str(pattern.value) if pattern.type == "str" else None


@functools.cache
def grammar() -> Grammar:
    """Returns the grammar of idl/rrpc.lark, read once."""
    text = _file().read_text()
    # The parser's own lexer leaves out the terminals that no rule has, those for what is wrong.
    lexer = Lark(text, parser=None, lexer="basic", start="statement")
    parser = Lark(text, parser="lalr", lexer="basic", start="statement", transformer=Builder())
    return Grammar(lexer, parser)
