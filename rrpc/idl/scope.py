"""The names that a file may use: its own, and those of the files it imports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rrpc._options import suggestion
from rrpc.schema import SCALARS, Const, Declaration, Enum, Error, Module, OneOf, Struct

from . import syntax
from .diagnostics import At, Diagnostics, Source
from .rules import CONTAINERS, type_hint

_KINDS: dict[type, str] = {
    syntax.Const: "const",
    syntax.Enum: "enum",
    syntax.Struct: "struct",
    syntax.Union: "union",
    syntax.Error: "error",
    syntax.Service: "service",
    Const: "const",
    Enum: "enum",
    Struct: "struct",
    OneOf: "union",
    Error: "error",
}


class Problem(Exception):
    """An error in the source, at a place."""

    def __init__(self, at: At, message: str) -> None:
        super().__init__(message)
        self.at = at
        self.message = message


class Reported(Problem):
    """A problem that is in the diagnostics already."""

    def __init__(self, at: At) -> None:
        super().__init__(at, "")


class Scope:
    """Resolves names of one file."""

    def __init__(self, source: Source, diagnostics: Diagnostics) -> None:
        self.source = source
        self._diagnostics = diagnostics
        self.errors = 0
        self.package = ""
        self.own: dict[str, syntax.Declared] = {}
        self.resolved: dict[str, Declaration] = {}
        """Own declarations that are done, and all imported ones."""
        self._kinds: dict[str, str] = {}
        self._by_bare_name: dict[str, list[str]] = {}

    def add(self, at: At, message: str) -> None:
        """Adds a diagnostic, and counts it."""
        self.errors += 1
        self._diagnostics.add(self.source, at, message)

    def full(self, name: str) -> str:
        """Returns the name with the package before it."""
        return f"{self.package}.{name}" if self.package else name

    def add_problem(self, problem: Problem, prefix: str = "") -> None:
        """Adds the diagnostic of a problem, unless it was added before."""
        if not isinstance(problem, Reported):
            self.add(problem.at, f"{prefix}{problem.message}")

    def declare(self, node: syntax.Declared) -> None:
        """Notes a declaration of the file. Adds a diagnostic if its name is taken."""
        name = self.full(node.name.text)
        if name in self.own:
            self.add(node.at, f"{node.name.text!r} is declared twice: first in line {self.own[name].at.line}")
        elif name in self._kinds or name in self.resolved:
            self.add(node.at, f"{name!r} is declared in an imported file too")
        else:
            self.own[name] = node
            self._kinds[name] = _KINDS[type(node)]

    def take(self, module: Module, at: At) -> None:
        """Makes what an imported file declares known."""
        # Its types may name what it imports itself: known, though not by name.
        for name, declaration in _all_declarations(module):
            if self.resolved.setdefault(name, declaration) is not declaration:
                self.add(at, f"{name!r} is declared in another imported file too")
        for name, declaration in module.declarations.items():
            self._know(name, _KINDS[type(declaration)])
        for name in module.services:
            self._know(name, "service")

    def _know(self, name: str, kind: str) -> None:
        self._kinds[name] = kind
        known = self._by_bare_name.setdefault(name.rpartition(".")[2], [])
        if name not in known:
            known.append(name)

    def lookup(self, name: str) -> Declaration | None:
        """A declaration by its full name, if it is resolved already."""
        return self.resolved.get(name)

    def find(self, word: str) -> list[str]:
        """The full names that a word may mean."""
        if "." in word:
            return [word] if word in self._kinds else []
        own = self.full(word)
        return [own] if own in self.own else self._by_bare_name.get(word, [])

    def kind_of(self, name: str) -> str:
        """Returns the kind of the thing that a name stands for."""
        return self._kinds[name]

    def reference(self, word: syntax.Word, kinds: Iterable[str], what: str) -> str:
        """The full name of one of these kinds; Problem says why it isn't one."""
        found = self.find(word.text)
        if len(found) > 1:
            raise Problem(word.at, f"{word.text!r} could be {' or '.join(found)}: write one of these")
        if not found:
            raise Problem(word.at, f"there is no {what} called {word.text!r}{self.hint(word.text, kinds)}")
        kind = self._kinds[found[0]]
        if kind not in kinds:
            raise Problem(word.at, f"{word.text!r} is {article(kind)}, not {article(what)}{_use(kind)}")
        return found[0]

    def hint(self, word: str, kinds: Iterable[str]) -> str:
        """Returns a hint with the name that was probably meant, among declarations of these kinds."""
        is_type = "struct" in kinds
        if is_type and (hint := type_hint(word)):
            return hint
        known = [name for name, kind in self._kinds.items() if kind in kinds]
        visible = [self._shortest(name) for name in known]
        return suggestion(word, [*visible, *([*SCALARS, *CONTAINERS] if is_type else [])])

    def _shortest(self, name: str) -> str:
        bare = name.rpartition(".")[2]
        return bare if self.find(bare) == [name] else name


def article(kind: str) -> str:
    """``a struct``, ``an error``."""
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def _use(kind: str) -> str:
    return {"error": "; methods name it behind 'throws'"}.get(kind, "")


def _all_declarations(module: Module) -> list[tuple[str, Declaration]]:
    inner: Mapping[str, Module] = module.imports
    return [*module.declarations.items(), *(item for m in inner.values() for item in _all_declarations(m))]
