"""Describes the tokens that the parser would accept next, in the words of a file's author."""

from __future__ import annotations

from collections.abc import Callable

_STATEMENTS = {"CONST", "ENUM", "FROZEN", "STRUCT", "UNION", "ERROR", "SERVICE", "PACKAGE", "IMPORT"}
_NAMES = {"NAME", "STREAM", "THROWS", "RESERVED", *_STATEMENTS}
_NUMBERS = {"INT", "FLOAT"}
_VALUES = {"STRING", "BYTES", "LSQB", "LBRACE", *_NUMBERS, *_NAMES}
_TYPES = {"LPAR", "STRING", "BYTES", "INT", "ELLIPSIS", *_NAMES}
_FIELDS = {"INT", "RESERVED"}
# What could go on, where something else may also come.
_CONTINUATIONS = {"QMARK", "VBAR", "DOT", "LESSTHAN", "DIMS_OPEN", "LSQB"}

# (what the place is known by, all that may stand there, what it is called); the first that fits counts
_GROUPS: tuple[tuple[set[str], set[str], str], ...] = (
    ({"LPAR", "NAME"}, _TYPES, "a type"),
    ({"STRING", "LSQB", "NAME"}, _VALUES, "a value"),
    ({"CONST", "STRUCT", "SERVICE", "NAME"}, _NAMES, "a name"),
    (
        {"CONST", "STRUCT", "SERVICE"},
        _STATEMENTS,
        "a declaration (const, enum, struct, union, error, service)",
    ),
    ({"NAME"}, _NAMES, "a name"),
    ({"INT", "RESERVED"}, _FIELDS, "a field ('1: name: type;')"),
    ({"INT"}, {"INT"}, "a number"),
    ({"STRING"}, {"STRING"}, "a string"),
)
_MEMBERS = {"SERVICE": "a method", "ENUM": "a member ('NAME = value;')"}


def expected(accepted: set[str], statement: str, spelling: Callable[[str], str | None]) -> str:
    """Says in words what was expected. ``statement`` is its keyword; ``spelling`` gives that of a terminal."""
    rest = accepted - {"DOC", "$END"}
    words = []
    if "RBRACE" in rest and "NAME" in rest and statement in _MEMBERS:
        words.append(_MEMBERS[statement])
        rest -= _NAMES
    for known_by, all_of_it, called in _GROUPS:
        if known_by <= rest:
            words.append(called)
            rest = rest - all_of_it
    if words or rest - _CONTINUATIONS:
        rest -= _CONTINUATIONS
    words += [f"'{text}'" for text in sorted(spelling(terminal) or terminal for terminal in rest)]
    return (
        " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words) or "the end of the file"
    )


def shown(terminal: str, text: str) -> str:
    """A token as a diagnostic names it."""
    if terminal == "DOC":
        return "a doc comment"
    if terminal in {"STRING", "BYTES"}:
        return text if len(text) <= 40 else f'{text[:36]}..."'
    text = text if len(text) <= 40 else f"{text[:36]}..."
    return f"'{text}'" if text.isprintable() else f"'\\x{ord(text[0]):02x}'"
