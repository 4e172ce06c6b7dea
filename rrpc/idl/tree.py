"""Builds the syntax tree from what the parser recognises. A method here is a rule of the grammar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lark import Token, Transformer, v_args

from . import syntax
from .diagnostics import At
from .literals import unquoted


def _at(token: Token) -> At:
    return At(token.line or 1, token.column or 1)


def _word(tokens: Sequence[Token]) -> syntax.Word:
    return syntax.Word(".".join(tokens), _at(tokens[0]))


@v_args(inline=True)
class Builder(Transformer[Token, Any]):
    """A maker of syntax nodes from the parse tree; each method is named after its rule or its terminal."""

    # --- terminals

    def INT(self, token: Token) -> syntax.Literal:
        return syntax.Literal(_int(token), _at(token))

    def FLOAT(self, token: Token) -> syntax.Literal:
        return syntax.Literal(float(token), _at(token))

    def STRING(self, token: Token) -> syntax.Literal:
        return syntax.Literal(unquoted(token), _at(token))

    BYTES = STRING

    def STAR(self, token: Token) -> syntax.Marker:
        return syntax.Marker(str(token), _at(token))

    SLASH = ELLIPSIS = STAR

    # --- words

    def docs(self, *lines: Token) -> str:
        """Returns the text of the doc comment lines, empty if there are none."""
        return "\n".join(line[3:].removeprefix(" ").rstrip() for line in lines).strip("\n")

    def name(self, token: Token) -> syntax.Word:
        return _word((token,))

    def dotted(self, *tokens: Token) -> syntax.Word:
        return _word(tokens)

    type_name = dotted

    def identifier(self, word: syntax.Word) -> syntax.Word:
        """Returns the name that stands for a value."""
        return word

    # --- values

    def list_value(self, opening: Token, *items: syntax.Value) -> syntax.ListValue:
        return syntax.ListValue(items, _at(opening))

    def map_value(self, opening: Token, *entries: Any) -> syntax.MapValue:
        return syntax.MapValue(entries, _at(opening))

    def entry(self, key: syntax.Value, value: syntax.Value) -> Any:
        return key, value

    # --- types

    named = syntax.Named
    optional = syntax.Optional

    def generic(self, name: syntax.Word, *rest: Any) -> syntax.Generic:
        """Makes a type with arguments, and with dimensions if it has some."""
        dims = rest[-1]
        return syntax.Generic(name, rest[:-1], *(dims or (None, None)))

    def dims(self, opening: Token, *dims: Any) -> Any:
        return dims, _at(opening)

    def alternatives(self, *items: syntax.TypeNode) -> syntax.Alternatives:
        return syntax.Alternatives(items)

    # --- statements

    import_ = syntax.Import
    member = syntax.Member
    field = syntax.Field

    def attribute(self, name: syntax.Word, text: syntax.Literal | None) -> syntax.Attribute:
        return syntax.Attribute(name, None if text is None else text.value)

    def attributes(self, *items: syntax.Attribute) -> tuple[syntax.Attribute, ...]:
        """Returns the attributes as a tuple."""
        return items

    def package(self, doc: str, keyword: Token, name: syntax.Word | None) -> syntax.Package:
        return syntax.Package(doc, name, _at(keyword))

    def const(self, doc: str, name: syntax.Word, kind: Any, value: Any, attributes: Any) -> syntax.Const:
        return syntax.Const(doc, name, attributes, kind, value)

    def enum(self, doc: str, name: syntax.Word, attributes: Any, *items: Any) -> syntax.Enum:
        return syntax.Enum(doc, name, attributes, items)

    def struct(self, doc: str, frozen: Token | None, name: syntax.Word, attributes: Any, *items: Any) -> Any:
        return syntax.Struct(doc, name, attributes, frozen is not None, items)

    def union(self, doc: str, name: syntax.Word, kind: Any, attributes: Any) -> syntax.Union:
        return syntax.Union(doc, name, attributes, kind)

    def error(self, doc: str, name: syntax.Word, code: syntax.Word, attributes: Any, *items: Any) -> Any:
        return syntax.Error(doc, name, attributes, code, items)

    def service(self, doc: str, name: syntax.Word, attributes: Any, *methods: Any) -> syntax.Service:
        return syntax.Service(doc, name, attributes, methods)

    def reserved(self, *items: syntax.Literal) -> syntax.Reserved:
        return syntax.Reserved(items)

    def method(self, doc: str, name: syntax.Word, *rest: Any) -> syntax.Method:
        """Makes a method."""
        *parameters, result, throws, attributes = rest
        return syntax.Method(doc, name, tuple(parameters), result, throws, attributes)

    def parameter(self, doc: str, name: Any, stream: Any, kind: Any, default: Any, attributes: Any) -> Any:
        return syntax.Parameter(doc, name, stream is not None, kind, default, attributes)

    def result(self, stream: Token | None, kind: syntax.TypeNode) -> syntax.Result:
        return syntax.Result(stream is not None, kind)

    def throws(self, *errors: syntax.Word) -> tuple[syntax.Word, ...]:
        """Returns the names of the errors that a method throws."""
        return errors


def _int(text: str) -> int:
    # Longer ones are refused before; Python itself gives up at 4300 digits.
    return int(text[:1000])
