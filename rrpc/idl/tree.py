"""From what the parser recognises to the syntax tree. A method here is a rule of the grammar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lark import Token, Transformer, v_args

from . import syntax
from .diagnostics import At
from .literals import unquoted

__all__ = ["Builder"]


def _at(token: Token) -> At:
    return At(token.line or 1, token.column or 1)


def _word(tokens: Sequence[Token]) -> syntax.Word:
    return syntax.Word(".".join(tokens), _at(tokens[0]))


@v_args(inline=True)
class Builder(Transformer[Token, Any]):
    """A maker of syntax nodes from the parse tree; each method is named after its rule or its terminal."""

    # --- terminals

    def INT(self, token: Token) -> syntax.Literal:
        """Makes an integer literal."""
        return syntax.Literal(_int(token), _at(token))

    def FLOAT(self, token: Token) -> syntax.Literal:
        """Makes a float literal."""
        return syntax.Literal(float(token), _at(token))

    def STRING(self, token: Token) -> syntax.Literal:
        """Makes a string or bytes literal."""
        return syntax.Literal(unquoted(token), _at(token))

    BYTES = STRING

    def STAR(self, token: Token) -> syntax.Marker:
        """Makes a marker: ``*``, ``/`` or ``...``."""
        return syntax.Marker(str(token), _at(token))

    SLASH = ELLIPSIS = STAR

    # --- words

    def docs(self, *lines: Token) -> str:
        """Returns the text of the doc comment lines, empty if there are none."""
        return "\n".join(line[3:].removeprefix(" ").rstrip() for line in lines).strip("\n")

    def name(self, token: Token) -> syntax.Word:
        """Makes a simple name."""
        return _word((token,))

    def dotted(self, *tokens: Token) -> syntax.Word:
        """Makes a dotted name."""
        return _word(tokens)

    type_name = dotted

    def identifier(self, word: syntax.Word) -> syntax.Word:
        """Returns the name that stands for a value."""
        return word

    # --- values

    def list_value(self, opening: Token, *items: syntax.Value) -> syntax.ListValue:
        """Makes a list of values."""
        return syntax.ListValue(items, _at(opening))

    def map_value(self, opening: Token, *entries: Any) -> syntax.MapValue:
        """Makes a map of values."""
        return syntax.MapValue(entries, _at(opening))

    def entry(self, key: syntax.Value, value: syntax.Value) -> Any:
        """Makes a map's entry: key and value."""
        return key, value

    # --- types

    def named(self, name: syntax.Word) -> syntax.Named:
        """Makes a type that is a name."""
        return syntax.Named(name)

    def generic(self, name: syntax.Word, *rest: Any) -> syntax.Generic:
        """Makes a type with arguments, and with dimensions if it has some."""
        dims = rest[-1]
        return syntax.Generic(name, rest[:-1], *(dims or (None, None)))

    def dims(self, opening: Token, *dims: Any) -> Any:
        """Makes an array's dimensions, with their place."""
        return dims, _at(opening)

    def optional(self, item: syntax.TypeNode) -> syntax.Optional:
        """Makes an optional type."""
        return syntax.Optional(item)

    def alternatives(self, *items: syntax.TypeNode) -> syntax.Alternatives:
        """Makes a type of several alternatives."""
        return syntax.Alternatives(items)

    # --- statements

    def attribute(self, name: syntax.Word, text: syntax.Literal | None) -> syntax.Attribute:
        """Makes an attribute."""
        return syntax.Attribute(name, None if text is None else text.value)

    def attributes(self, *items: syntax.Attribute) -> tuple[syntax.Attribute, ...]:
        """Returns the attributes as a tuple."""
        return items

    def package(self, doc: str, keyword: Token, name: syntax.Word | None) -> syntax.Package:
        """Makes a package statement."""
        return syntax.Package(doc, name, _at(keyword))

    def import_(self, path: syntax.Literal) -> syntax.Import:
        """Makes an import."""
        return syntax.Import(path)

    def const(self, doc: str, name: syntax.Word, kind: Any, value: Any, attributes: Any) -> syntax.Const:
        """Makes a constant."""
        return syntax.Const(doc, name, attributes, kind, value)

    def enum(self, doc: str, name: syntax.Word, attributes: Any, *items: Any) -> syntax.Enum:
        """Makes an enum."""
        return syntax.Enum(doc, name, attributes, items)

    def struct(self, doc: str, frozen: Token | None, name: syntax.Word, attributes: Any, *items: Any) -> Any:
        """Makes a struct."""
        return syntax.Struct(doc, name, attributes, frozen is not None, items)

    def union(self, doc: str, name: syntax.Word, kind: Any, attributes: Any) -> syntax.Union:
        """Makes a one-of."""
        return syntax.Union(doc, name, attributes, kind)

    def error(self, doc: str, name: syntax.Word, code: syntax.Word, attributes: Any, *items: Any) -> Any:
        """Makes an error."""
        return syntax.Error(doc, name, attributes, code, items)

    def service(self, doc: str, name: syntax.Word, attributes: Any, *methods: Any) -> syntax.Service:
        """Makes a service."""
        return syntax.Service(doc, name, attributes, methods)

    def member(self, doc: str, name: syntax.Word, value: Any, attributes: Any) -> syntax.Member:
        """Makes a member of an enum."""
        return syntax.Member(doc, name, value, attributes)

    def field(self, doc: str, number: Any, name: Any, kind: Any, default: Any, attributes: Any) -> Any:
        """Makes a field of a struct or an error."""
        return syntax.Field(doc, number, name, kind, default, attributes)

    def reserved(self, *items: syntax.Literal) -> syntax.Reserved:
        """Makes a reservation of numbers, names or values."""
        return syntax.Reserved(items)

    def method(self, doc: str, name: syntax.Word, *rest: Any) -> syntax.Method:
        """Makes a method."""
        *parameters, result, throws, attributes = rest
        return syntax.Method(doc, name, tuple(parameters), result, throws, attributes)

    def parameter(self, doc: str, name: Any, stream: Any, kind: Any, default: Any, attributes: Any) -> Any:
        """Makes a parameter."""
        return syntax.Parameter(doc, name, stream is not None, kind, default, attributes)

    def result(self, stream: Token | None, kind: syntax.TypeNode) -> syntax.Result:
        """Makes a method's result."""
        return syntax.Result(stream is not None, kind)

    def throws(self, *errors: syntax.Word) -> tuple[syntax.Word, ...]:
        """Returns the names of the errors that a method throws."""
        return errors


def _int(text: str) -> int:
    # Longer ones are refused before; Python itself gives up at 4300 digits.
    return int(text[:1000])
