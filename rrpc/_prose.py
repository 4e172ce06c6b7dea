"""Text of a stranger's that people will read: documentation, reasons, errors."""

from __future__ import annotations

import json
import re

# Control characters but for line breaks and tabs, marks that turn the direction of the text, lone surrogates.
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def without_orders(text: str) -> str:
    """Returns the text with a question mark for all that a terminal would obey, or couldn't take.

    It may be put into a source file, where what an editor shows is to be what runs.
    """
    return _OBEYED.sub("?", text)


def for_terminal(text: str) -> str:
    """Returns the text with what a terminal would obey, or couldn't take, as JSON escapes it; JSON stays JSON."""
    return _OBEYED.sub(lambda found: json.dumps(found[0])[1:-1], text)
