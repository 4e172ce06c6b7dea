"""Documentation and deprecation as one docstring, and back."""

from __future__ import annotations

from inspect import cleandoc

DOCS = "__rrpc_docs__"
"""Where a class may have docstrings of its fields or members, by name."""

_MARK = "Deprecated:"


def split_docstring(text: str | None) -> tuple[str, str | None]:
    """The documentation, and why not to use it any more: what a line ``Deprecated: why`` says, or None."""
    lines = cleandoc(text or "").splitlines()
    marked = next((i for i, line in enumerate(lines) if line.startswith(_MARK)), None)
    if marked is None:
        return "\n".join(lines).strip(), None
    why = lines.pop(marked).removeprefix(_MARK).strip()
    if 0 < marked < len(lines) and not lines[marked - 1] and not lines[marked]:
        del lines[marked]  # the line stood alone between two empty ones
    return "\n".join(lines).strip(), why


def join_docstring(doc: str, deprecated: str | None) -> str:
    """The docstring that ``split_docstring`` takes apart."""
    if deprecated is None:
        return doc
    return f"{doc}\n\n{_MARK} {' '.join(deprecated.split())}".strip()
