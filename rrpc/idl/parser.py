"""Text to syntax tree. A wrong statement or member is reported and left out, and the rest is still read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from . import syntax
from .diagnostics import At, Diagnostics, Source
from .expected import expected, shown
from .grammar import Token, UnexpectedToken, grammar
from .literals import wrong_escapes

FILE_BYTES_MAX = 1 << 20
NESTING_MAX = 32
_DIGITS_MAX = 1000
_ERRORS_MAX = 20

_OPENING = {"LESSTHAN": 1, "LPAR": 1, "LSQB": 1, "DIMS_OPEN": 1, "LBRACE": 1}
_CLOSING = {"MORETHAN": 1, "RPAR": 1, "RSQB": 1, "RBRACE": 1}
_DECLARATIONS = {"CONST", "ENUM", "FROZEN", "STRUCT", "UNION", "ERROR", "SERVICE"}
_WITHOUT_BODY = {"PACKAGE", "IMPORT", "CONST", "UNION"}
_WORDS = {"NAME", "RESERVED", "PACKAGE", "IMPORT", *_DECLARATIONS}

Tokens = Sequence[Token]


def parse_source(source: Source, diagnostics: Diagnostics) -> syntax.File:
    """The file's statements; what can't be read goes to ``diagnostics``."""
    tokens = list(grammar().lexer.lex(source.text))
    reader = _Reader(source, diagnostics)
    if not reader.check_nesting(tokens):
        return syntax.File(())
    statements = (reader.statement(part) for part in _statements(tokens))
    return syntax.File(tuple(statement for statement in statements if statement is not None))


def _statements(tokens: Tokens) -> Iterator[Tokens]:
    """The tokens of one statement after another, also where a brace is missing."""
    start = depth = 0
    for place, token in enumerate(tokens):
        if place > start and _begins_declaration(tokens, place):
            first = _before_docs(tokens, place)
            if first > start:
                yield tokens[start:first]
                start, depth = first, 0
        if token.type == "LBRACE":
            depth += 1
        elif token.type == "RBRACE":
            depth = max(0, depth - 1)
        if depth == 0 and _ends(tokens, start, token):
            yield tokens[start : place + 1]
            start = place + 1
    if start < len(tokens):
        yield tokens[start:]


def _ends(tokens: Tokens, start: int, token: Token) -> bool:
    if token.type == "SEMICOLON":
        return True
    return token.type == "RBRACE" and _keyword(tokens[start:]) not in _WITHOUT_BODY


def _keyword(tokens: Tokens) -> str:
    """The first token behind the documentation."""
    return next((token.type for token in tokens if token.type != "DOC"), "")


def _before_docs(tokens: Tokens, place: int) -> int:
    while place and tokens[place - 1].type == "DOC":
        place -= 1
    return place


def _begins_declaration(tokens: Tokens, place: int) -> bool:
    """A declaration's keyword and its name: nothing else in a file looks like this."""
    if tokens[place].type not in _DECLARATIONS or place + 1 == len(tokens):
        return False
    return tokens[place + 1].type in _WORDS and tokens[place - 1].type != "FROZEN"


class _Reader:
    def __init__(self, source: Source, diagnostics: Diagnostics) -> None:
        self._source = source
        self._diagnostics = diagnostics
        self._errors = 0

    def _add(self, at: At, message: str) -> None:
        self._errors += 1
        self._diagnostics.add(self._source, at, message)

    def check_nesting(self, tokens: Tokens) -> bool:
        depth = 0
        for token in tokens:
            depth = max(0, depth + _OPENING.get(token.type, 0) - _CLOSING.get(token.type, 0))
            if depth > NESTING_MAX:
                self._add(_at(token), f"nested too deeply: more than {NESTING_MAX} brackets are open here")
                return False
        return True

    def statement(self, tokens: Tokens) -> syntax.Statement | None:
        """The statement without the members that are wrong; None if it is wrong itself."""
        if self._errors >= _ERRORS_MAX or not self._check_tokens(tokens):
            return None
        end = tokens[-1]
        while tokens:
            parser = grammar().interactive()
            place = 0
            try:
                for place, token in enumerate(tokens):  # noqa: B007
                    parser.feed_token(token)
                place += 1
                statement: syntax.Statement = parser.feed_eof(tokens[-1])  # type: ignore[no-untyped-call]
                return statement
            except UnexpectedToken:
                self._report(tokens, place, end)
            first, last = _member(tokens, place)
            if not first or self._errors >= _ERRORS_MAX:
                break
            tokens = [*tokens[:first], *tokens[last:]]
        return None

    def _report(self, tokens: Tokens, place: int, end: Token) -> None:
        parser = grammar().interactive()
        for token in tokens[:place]:
            parser.feed_token(token)
        accepted = parser.accepts()  # type: ignore[no-untyped-call]
        wanted = expected(accepted, _keyword(tokens), grammar().spelling)
        found = tokens[place] if place < len(tokens) else None
        before = tokens[place - 1] if place and found is not None else end
        if before.type == "DOC" and before is not found:
            after = f"; here comes {shown(found.type, found)}" if found is not None else ""
            self._add(_at(before), f"a doc comment stands before what it documents{after}")
        elif found is None or ("SEMICOLON" in accepted and found.line != before.line):
            at = At(before.end_line or 1, before.end_column or 1)
            self._add(at, f"expected {wanted} here")
        else:
            self._add(_at(found), f"expected {wanted}, found {shown(found.type, found)}")

    def _check_tokens(self, tokens: Tokens) -> bool:
        """False if there is a token that means nothing in any place."""
        before = self._errors
        for token in tokens:
            if token.type.startswith("BAD_"):
                self._add(_at(token), _BAD[token.type].format(shown("", token[:1])))
            elif token.type in {"STRING", "BYTES"}:
                for offset, message in wrong_escapes(token):
                    self._add(At(token.line or 1, (token.column or 1) + offset), message)
            elif token.type in {"INT", "FLOAT"} and len(token) > _DIGITS_MAX:
                self._add(_at(token), f"a number of more than {_DIGITS_MAX} digits")
            elif token.type == "FLOAT" and token != "-inf" and math.isinf(float(token)):
                self._add(_at(token), f"{token:.40} is too large for a float; infinity is written inf")
            if self._errors >= _ERRORS_MAX:
                return False
        return self._errors == before


_BAD = {
    "BAD_COMMENT": "a comment that isn't closed: '*/' is missing",
    "BAD_STRING": "a string that isn't closed: its second '\"' is missing on this line",
    "BAD_CHARACTER": "{} has no meaning here",
}


def _at(token: Token) -> At:
    return At(token.line or 1, token.column or 1)


def _member(tokens: Tokens, place: int) -> tuple[int, int]:
    """The tokens of the member around a place, from ... to; (0, 0) if it is in none."""
    depths = list(_depths(tokens))
    if place >= len(tokens) or depths[place] == 0:
        return 0, 0
    first = place
    while not (depths[first - 1] <= 1 and tokens[first - 1].type in {"LBRACE", "SEMICOLON"}):
        first -= 1
    last = place
    while last < len(tokens):
        if tokens[last].type == "RBRACE" and depths[last] == 1:
            break
        last += 1
        if tokens[last - 1].type == "SEMICOLON" and depths[last - 1] == 1:
            break
    return (first, last) if last > first else (0, 0)


def _depths(tokens: Tokens) -> Iterator[int]:
    """Yields the number of open braces before each token: ``{`` has the outer depth, ``}`` the inner one."""
    depth = 0
    for token in tokens:
        if token.type == "LBRACE":
            yield depth
            depth += 1
        else:
            yield depth
            depth -= token.type == "RBRACE"
