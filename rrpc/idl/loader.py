"""Files and what they import."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rrpc.schema import Module

from . import syntax
from .diagnostics import At, Diagnostics, Source
from .parser import FILE_BYTES_MAX, parse_source
from .resolver import resolve

_Path = str | os.PathLike[str]


def load(path: _Path, include: Sequence[_Path] = ()) -> Module:
    """Reads the module of a file.

    Args:
        path: The ``.rrpc`` file.
        include: Folders in which imports are looked for that aren't beside the file that has them.

    Raises:
        IdlError: Something is wrong in this file or in those it imports; it has all of it.
        OSError: The file can't be read.
    """
    loader = _Loader(include)
    module = loader.file(os.fspath(path), Path(path).read_bytes())
    loader.diagnostics.raise_any()
    return module


def parse(text: str | bytes, name: str = "<text>", include: Sequence[_Path] = ()) -> Module:
    """Reads the module of a text.

    Args:
        text: The contents of a ``.rrpc`` file; bytes are UTF-8.
        name: A path by which diagnostics name it; imports are looked for beside it first.
        include: Folders in which they are looked for then.

    Raises:
        IdlError: Something is wrong in it or in what it imports; it has all of it.
    """
    loader = _Loader(include)
    module = loader.file(name, text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    loader.diagnostics.raise_any()
    return module


class _Loader:
    def __init__(self, include: Sequence[_Path]) -> None:
        self.diagnostics = Diagnostics()
        self._include = [os.fspath(folder) for folder in include]
        self._open: list[tuple[str, str]] = []
        self._done: dict[str, Module] = {}

    def file(self, name: str, content: bytes) -> Module:
        """The module of a file's content; incomplete if it was reported."""
        key = os.path.realpath(name)
        source = Source(name, content.decode("utf-8-sig", "replace"))
        before = len(self.diagnostics)
        file = syntax.File(())
        if len(content) > FILE_BYTES_MAX:
            self.diagnostics.add(source, At(1, 1), f"the file has more than {FILE_BYTES_MAX} bytes: split it")
        elif self._is_text(source, content):
            file = parse_source(source, self.diagnostics)
        self._open.append((key, name))
        imports = self._imports(source, file)
        self._open.pop()
        module = Module("", {}, {})
        if len(self.diagnostics) == before:
            module = resolve(source, file, imports, self.diagnostics)
        self._done[key] = module
        return module

    def _is_text(self, source: Source, content: bytes) -> bool:
        try:
            content.decode()
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            start = content.rfind(b"\n", 0, error.start) + 1
            column = len(content[start : error.start].decode("utf-8", "replace")) + 1
            self.diagnostics.add(
                source, At(line, column), "the file isn't UTF-8: a byte here is no part of a character"
            )
            return False
        return True

    def _imports(self, source: Source, file: syntax.File) -> dict[syntax.Import, Module]:
        found: dict[syntax.Import, Module] = {}
        keys: set[str] = set()
        for node in file.statements:
            if not isinstance(node, syntax.Import):
                continue
            path = self._find(source, node)
            if path is None:
                continue
            key = os.path.realpath(path)
            if key in keys:
                self.diagnostics.add(source, node.at, "a file imported twice")
                continue
            keys.add(key)
            if self._is_new(source, node, key):
                self.file(path, Path(path).read_bytes())
            if key in self._done:
                found[node] = self._done[key]
        return found

    def _find(self, source: Source, node: syntax.Import) -> str | None:
        wanted = str(node.path.value)
        if not wanted or "\0" in wanted or "\\" in wanted or os.path.isabs(wanted):
            self.diagnostics.add(
                source, node.at, "expected a relative path with '/', such as \"common.rrpc\""
            )
            return None
        folders = [os.path.dirname(source.name), *self._include]
        for folder in folders:
            path = os.path.normpath(os.path.join(folder, wanted))
            if os.path.isfile(path):
                return path
        looked = ", ".join(os.path.normpath(folder or ".") for folder in folders)
        self.diagnostics.add(source, node.at, f"there is no file {wanted!r} in {looked}")
        return None

    def _is_new(self, source: Source, node: syntax.Import, key: str) -> bool:
        """Returns whether the file must still be read; a file that is being read imports itself."""
        keys = [known for known, _ in self._open]
        if key in keys:
            names = [name for _, name in self._open[keys.index(key) :]]
            way = " -> ".join([*names, names[0]])
            self.diagnostics.add(source, node.at, f"files that import each other: {way}")
            return False
        return key not in self._done
