"""Strings and byte strings, as they stand in a file and as values."""

from __future__ import annotations

import re

_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_SIMPLE = {'"': '"', "\\": "\\", "n": "\n", "r": "\r", "t": "\t", "0": "\0"}
_BACK = {value: f"\\{letter}" for letter, value in _SIMPLE.items() if letter != "0"}


def unquoted(text: str) -> str | bytes:
    """The value of a token with its quotes; wrong escapes are left as they are."""
    if text.startswith("b"):
        return _ESCAPE.sub(_value, text[2:-1]).encode("latin-1", "replace")
    return _ESCAPE.sub(_value, text[1:-1])


def _value(match: re.Match[str]) -> str:
    body = match[1]
    if len(body) > 1:
        code = int(body[1:], 16)
        return chr(code) if _sendable(code) else match[0]
    return _SIMPLE.get(body, match[0])


def _sendable(code: int) -> bool:
    return code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF


def wrong_escapes(text: str) -> list[tuple[int, str]]:
    """(offset into the token, what is wrong) for each escape, or character, that means nothing there."""
    binary = text.startswith("b")
    found = []
    for match in _ESCAPE.finditer(text):
        body = match[1]
        if len(body) == 1 and body not in _SIMPLE:
            known = r"\", \\, \n, \r, \t, \0, \xNN" + ("" if binary else r", \uNNNN or \UNNNNNNNN")
            found.append(
                (match.start(), f"a backslash and {body!r} mean nothing together; there are {known}")
            )
        elif binary and body[0] in "uU" and len(body) > 1:
            found.append((match.start(), r"bytes have no \u escapes; write \xNN for each byte"))
        elif len(body) > 1 and not _sendable(int(body[1:], 16)):
            found.append((match.start(), f"{match[0]} is no character"))
    if binary:
        found += [
            (place, f"bytes are written with ASCII characters and \\xNN, not with {character!r}")
            for place, character in enumerate(text)
            if not character.isascii()
        ]
    return found


def quoted(text: str) -> str:
    """A string as it is written; ValueError for what isn't text: half of a surrogate pair."""
    text.encode()
    return f'"{"".join(map(_written, text))}"'


def _written(character: str) -> str:
    if character in _BACK:
        return _BACK[character]
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def quoted_bytes(value: bytes) -> str:
    """Bytes as they are written."""
    text = "".join(_written(chr(byte)) if byte < 0x80 else f"\\x{byte:02x}" for byte in value)
    return f'b"{text}"'
