"""Metadata on the command line: ``--metadata NAME=VALUE``, and what came back."""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rrpc._prose import for_terminal
from rrpc.cli.common import BadInput
from rrpc.metadata import Metadata

_BINARY = "-bin"


def metadata_of(given: Sequence[str]) -> Metadata:
    """Returns the metadata given as ``NAME=VALUE`` texts. Raises BadInput.

    The value of a name that ends in ``-bin`` is bytes in base64. A name may be given more than once.
    """
    values: dict[str, list[str | bytes]] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise BadInput(f"--metadata {text}: write name=value")
        values.setdefault(name, []).append(_bytes(text, value) if name.endswith(_BINARY) else value)
    try:
        return Metadata(values)
    except ValueError as error:
        raise BadInput(str(error)) from None


def _bytes(text: str, value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadInput(f"--metadata {text}: {_BINARY} values are base64: {error}") from None


def show_metadata(metadata: Mapping[str, Any]) -> None:
    """Prints metadata to stderr, one value a line, bytes in base64."""
    received = metadata if isinstance(metadata, Metadata) else Metadata()
    for name in received:
        for value in received.get_all(name):
            shown = value if isinstance(value, str) else base64.b64encode(value).decode()
            print(for_terminal(f"{name}: {shown}"), file=sys.stderr)
