"""Methods with streams: a line for each item, in and out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import rrpc
from rrpc._client.stream_call import StreamCall
from rrpc._interface import RECEIVES, SENDS, Method, Mismatch, compile_check, item_of
from rrpc._prose import for_terminal
from rrpc.cli.common import BadInput

from .given import value_of
from .metadata_option import show_metadata
from .to_json import to_json


def call_stream(
    client: rrpc.Client, method: Method, by_place: Sequence[Any], by_name: dict[str, Any], options: Any
) -> Any:
    """The result; of a stream each item is printed as it comes, and there is none.

    Of a method that takes a stream ``by_place`` are the items as texts; without any they are read from stdin.
    ``options`` are those of the command line.
    """
    sends, receives = bool(method.kind & SENDS), bool(method.kind & RECEIVES)
    items = _items(method, by_place) if sends else iter(())
    stream = rrpc.open_stream(
        client, method.name, *(() if sends else by_place), sends=sends, receives=receives, **by_name
    )
    with stream:
        try:
            result = _result(stream._call, stream, items, method, options.json)
        finally:
            if options.show_metadata:
                show_metadata(stream.initial_metadata())
        if options.show_metadata:
            show_metadata(stream.metadata())
    return result


def _result(call: StreamCall, stream: Any, items: Iterator[Any], method: Method, strict: bool) -> Any:
    if not method.kind & RECEIVES:
        call.send_all(items)  # unlike send(), it takes a server for done that doesn't want all of them
        return checked(call.result(), method.result)
    if method.kind & SENDS:
        call.feed(items)
    _print(stream, method, strict)
    return None


def _items(method: Method, texts: Sequence[str]) -> Iterator[Any]:
    (parameter,) = method.parameters
    kind, _ = item_of(parameter.annotation)
    lines = texts or (line.rstrip("\n") for line in sys.stdin)
    return (_item(text, kind) for text in lines if text.strip())


def _item(text: str, kind: Any) -> Any:
    try:
        return compile_check(kind)(value_of(text, text, kind))
    except Mismatch as mismatch:
        raise BadInput(f"{text}{mismatch.path}: {mismatch}") from None


def _print(stream: Any, method: Method, strict: bool) -> None:
    kind, _ = item_of(method.result)
    for item in stream:
        shown = to_json(checked(item, kind), whole=strict)
        print(for_terminal(json.dumps(shown, ensure_ascii=strict, allow_nan=False)), flush=True)


def checked(value: Any, annotation: Any) -> Any:
    """Returns a result or an item as its annotation has it. Raises Internal if it isn't as declared."""
    try:
        return compile_check(annotation)(value)
    except Mismatch as mismatch:
        raise rrpc.Internal(f"the result{mismatch.path} isn't as declared: {mismatch}") from None
