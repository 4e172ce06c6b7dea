"""Interfaces made by hypothesis: every Module from ``modules`` can be written as an .rrpc file.

Fields, parameters and enum members have plain lower-case or upper-case names, declarations capitalised ones
with one capital letter, so that names made from them (``RowClient``) clash with none.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from hypothesis import strategies as st

from rrpc.schema import (
    ARRAY_ITEMS,
    MISSING,
    Array,
    Const,
    Declaration,
    Enum,
    EnumMember,
    Error,
    Field,
    List,
    Literal,
    Map,
    Method,
    Module,
    Named,
    OneOf,
    Optional,
    Parameter,
    Scalar,
    Service,
    Set,
    Struct,
    Tuple,
    Type,
    Union,
)
from rrpc.schema.closure import closure

INTS = {f"{sign}{bits}": (sign, bits) for sign in "iu" for bits in (8, 16, 32, 64)}
PLAIN = ("bool", "int", "float", "complex", "string", "bytes", *INTS, "f32")
TIMES = ("datetime", "date", "time", "duration", "decimal", "uuid")
CODES = ("not_found", "failed_precondition", "invalid_argument", "internal", "unknown", "data_loss")
_TAKEN = {*keyword.kwlist, "timeout", "out", "self", "code", "message", "args", "reserved"}
_METHODS_TAKEN = {"abc", "address", "call", "close", "info", "rrpc", "start", "stats", "with_options"}
# So that no array has the name of a parameter that isn't its size.
DIMS = ("dim_n", "dim_m")

_lower = st.from_regex(r"\A[a-z][a-z0-9]{0,4}(_[a-z0-9]{1,4})?\Z").filter(lambda name: name not in _TAKEN)
_upper = st.from_regex(r"\A[A-Z][A-Z0-9]{0,4}(_[A-Z0-9]{1,4})?\Z")
_capital = st.from_regex(r"\A[A-Z][a-z0-9]{1,8}\Z").filter(lambda name: name not in {"Any", "None", "True"})
_words = st.text(
    st.characters(codec="utf-8", exclude_categories=("C", "Z"), include_characters=" "), max_size=60
)
docs = st.lists(_words.map(str.strip).filter(lambda line: not line.startswith("Deprecated")), max_size=3).map(
    lambda lines: "\n".join(lines).strip()
)
deprecated = st.none() | _words.map(lambda text: " ".join(text.split()))
_strings = st.text(st.characters(codec="utf-8"), max_size=12)


# --- types -------------------------------------------------------------------------------------------

Draw = Callable[..., Any]
_ITEMS = sorted(ARRAY_ITEMS)
_LITERALS = st.lists(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | _strings | st.binary(max_size=6),
    min_size=1,
    max_size=4,
    unique_by=lambda value: (type(value).__name__, value),
)
_KEYS = ("bool", "int", "string", "bytes", "uuid", "date", *INTS)
_ALTERNATIVES = ("bool", "int", "float", "string", "bytes", "date", "uuid", "i32", "f32")


def _pick(draw: Draw, *choices: Any) -> Any:
    return choices[draw(st.integers(0, len(choices) - 1))]


def draw_type(draw: Draw, declared: Mapping[str, Declaration], depth: int = 2) -> Type:
    """Any type that may stand in a field, a parameter or a result."""
    named = [name for name, known in declared.items() if isinstance(known, (Struct, Enum, OneOf))]
    what = _pick(draw, *_SIMPLE, *(["named"] * 3 if named else []), *(_NESTED if depth else []))
    if what == "scalar":
        return Scalar(_pick(draw, *PLAIN, *TIMES, "any", "buffer"))
    if what == "array":
        return draw_array(draw)
    if what == "literal":
        return Literal(tuple(draw(_LITERALS)))
    if what == "named":
        return Named(_pick(draw, *named))
    return _draw_nested(draw, what, declared, depth - 1)


_SIMPLE = ("scalar", "scalar", "scalar", "array", "array", "literal")
_NESTED = ("list", "set", "map", "tuple", "variadic", "optional", "union")


def _draw_nested(draw: Draw, what: str, declared: Mapping[str, Declaration], depth: int) -> Type:
    if what == "set":
        return Set(draw_key(draw, declared), draw(st.booleans()))
    if what == "union":
        return Union(draw_alternatives(draw, declared, depth))
    inner = draw_type(draw, declared, depth)
    if what == "list":
        return List(inner)
    if what == "map":
        return Map(draw_key(draw, declared), inner)
    if what == "variadic":
        return Tuple((inner,), variadic=True)
    if what == "optional":
        return inner if isinstance(inner, Optional) else Optional(inner)
    return Tuple((inner, *(draw_type(draw, declared, depth) for _ in range(draw(st.integers(0, 2))))))


def draw_array(draw: Draw) -> Array:
    dims = draw(st.none() | st.lists(st.none() | st.sampled_from(DIMS) | st.integers(0, 4), max_size=3))
    return Array(_pick(draw, *_ITEMS), None if dims is None else tuple(dims))


def lent(kind: Type, borrowed: bool) -> Type:
    """Returns the type with its arrays borrowed, those in unions and keys left out."""
    match kind:
        case Array():
            return replace(kind, borrowed=borrowed)
        case List(item) | Optional(item):
            return replace(kind, item=lent(item, borrowed))
        case Map(key, value):
            return Map(key, lent(value, borrowed))
        case Tuple(items):
            return replace(kind, items=tuple(lent(item, borrowed) for item in items))
    return kind


def draw_key(draw: Draw, declared: Mapping[str, Declaration]) -> Type:
    """A type of a map's keys or a set's items."""
    enums = [Named(name) for name, known in declared.items() if isinstance(known, Enum)]
    choices = (*enums, *map(Scalar, _KEYS))
    if draw(st.integers(0, 4)) == 0:
        return Tuple(tuple(_pick(draw, *choices) for _ in range(draw(st.integers(1, 2)))))
    return cast(Type, _pick(draw, *choices))


def shape_of(kind: Type, declared: Mapping[str, Declaration]) -> str:
    """Alternatives of one union have different ones."""
    if isinstance(kind, Named):
        known = declared[kind.name]
        if isinstance(known, Enum):
            return "int" if isinstance(known.members[0].value, int) else "string"
        return f"struct {kind.name}"
    if isinstance(kind, Scalar):
        return "int" if kind.name in INTS else {"f32": "float"}.get(kind.name, kind.name)
    return type(kind).__name__


def draw_alternatives(draw: Draw, declared: Mapping[str, Declaration], depth: int = 1) -> tuple[Type, ...]:
    """Two types or more that can be told apart."""
    named = [Named(name) for name, known in declared.items() if isinstance(known, (Enum, Struct))]
    found: dict[str, Type] = {}
    for _ in range(draw(st.integers(2, 4))):
        kind = _pick(draw, *map(Scalar, _ALTERNATIVES), "list", "map", "array", *named)
        if kind == "list":
            kind = List(draw_type(draw, declared, depth))
        elif kind == "map":
            kind = Map(Scalar("string"), draw_type(draw, declared, depth))
        elif kind == "array":
            kind = draw_array(draw)
        found.setdefault(shape_of(kind, declared), kind)
    if len(found) < 2:
        found.setdefault("time", Scalar("time"))
    return tuple(found.values())


# --- defaults ----------------------------------------------------------------------------------------


def _scalar_default(name: str) -> st.SearchStrategy[Any] | None:
    if name == "int" or name in INTS:
        sign, bits = INTS.get(name, ("i", 80))
        low = -(1 << (bits - 1)) if sign == "i" else 0
        return st.integers(low, low + (1 << bits) - 1)
    if name == "f32":
        return st.floats(width=32, allow_nan=False)
    made: dict[str, st.SearchStrategy[Any]] = {
        "bool": st.booleans(),
        "float": st.floats(allow_nan=False),
        "complex": st.floats(-1e9, 1e9).map(complex),
        "string": _strings,
        "bytes": st.binary(max_size=8),
        "any": st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _strings,
    }
    return made.get(name)


def default_for(kind: Type, declared: Mapping[str, Declaration]) -> st.SearchStrategy[Any] | None:
    """Default values of a type; None if it has none."""
    match kind:
        case Scalar(name):
            return _scalar_default(name)
        case Literal(values):
            return st.sampled_from(values)
        case Optional(item):
            inner = default_for(item, declared)
            return st.none() if inner is None else st.none() | inner
        case List(item):
            return _tuples(default_for(item, declared))
        case Set(item):
            return _tuples(default_for(item, declared), unique=True)
        case Map():
            return st.just({})
        case Tuple(items, variadic=False):
            inners = [default_for(item, declared) for item in items]
            known = [inner for inner in inners if inner is not None]
            return st.tuples(*known) if len(known) == len(inners) else None
        case Named(name):
            enum = declared.get(name)  # none yet of a struct that names itself
            if isinstance(enum, Enum):
                return st.sampled_from([member.name for member in enum.members])
    return None


def draw_default(draw: Draw, kind: Type, declared: Mapping[str, Declaration]) -> tuple[Type, Any]:
    """A default, and the type it is of: optional if the one given has no defaults."""
    values = default_for(kind, declared)
    if values is None:
        return kind if isinstance(kind, Optional) else Optional(kind), None
    return kind, draw(values)


def _tuples(item: st.SearchStrategy[Any] | None, unique: bool = False) -> st.SearchStrategy[Any]:
    if item is None:
        return st.just(())
    if unique:
        return st.lists(item, max_size=2, unique_by=repr).map(tuple)
    return st.lists(item, max_size=2).map(tuple)


# --- declarations ------------------------------------------------------------------------------------


@st.composite
def enums(draw: Draw, name: str) -> Enum:
    members = draw(st.lists(_upper, min_size=1, max_size=4, unique=True))
    values: st.SearchStrategy[Any] = st.integers(-(2**31), 2**31) if draw(st.booleans()) else _strings
    chosen = draw(st.lists(values, min_size=len(members), max_size=len(members), unique=True))
    return Enum(
        name,
        tuple(
            EnumMember(member, value, doc=draw(docs), deprecated=draw(deprecated))
            for member, value in zip(members, chosen, strict=True)
        ),
        doc=draw(docs),
        deprecated=draw(deprecated),
    )


@st.composite
def fields(draw: Draw, declared: Mapping[str, Declaration], own: Type | None = None) -> tuple[Field, ...]:
    """Fields in any order of their numbers; ``own`` may be named by some."""
    names = draw(st.lists(_lower, max_size=4, unique=True))
    numbers = draw(st.lists(st.integers(1, 99), min_size=len(names), max_size=len(names), unique=True))
    if draw(st.booleans()):
        numbers = list(range(1, len(names) + 1))
    with_default_from = draw(st.integers(0, len(names)))
    mixed = draw(st.integers(0, 3)) == 0
    made = []
    for place, (number, name) in enumerate(zip(numbers, names, strict=True)):
        kind, default = draw_type(draw, declared), MISSING
        if own is not None and draw(st.integers(0, 5)) == 0:
            kind = _pick(draw, Optional(own), List(own), Map(Scalar("string"), own))
        if draw(st.booleans()) if mixed else place >= with_default_from:
            kind, default = draw_default(draw, kind, declared)
        made.append(Field(number, name, kind, default, doc=draw(docs), deprecated=draw(deprecated)))
    return tuple(made)


@st.composite
def declarations(draw: Draw, prefix: str, names: list[str]) -> dict[str, Declaration]:
    declared: dict[str, Declaration] = {}
    for bare in names:
        name = prefix + bare
        what = draw(st.sampled_from(["enum", "struct", "struct", "union", "error", "const"]))
        notes = {"doc": draw(docs), "deprecated": draw(deprecated)}
        if what == "enum":
            declared[name] = draw(enums(name))
        elif what == "union":
            declared[name] = OneOf(name, draw_alternatives(draw, declared), **notes)
        elif what == "error":
            declared[name] = Error(name, draw(st.sampled_from(CODES)), draw(fields(declared)), **notes)
        elif what == "const":
            declared[name] = _const(draw, name, declared, notes)
        else:
            own = draw(fields(declared, Named(name)))
            declared[name] = Struct(name, own, frozen=draw(st.booleans()), **notes)
    return declared


def _const(draw: Draw, name: str, declared: Mapping[str, Declaration], notes: Any) -> Const:
    kind, value = draw_default(draw, draw_type(draw, declared), declared)
    return Const(name, kind, value, **notes)


# --- services ----------------------------------------------------------------------------------------


@st.composite
def methods(draw: Draw, name: str, declared: Mapping[str, Declaration]) -> Method:
    errors = [known.name for known in declared.values() if isinstance(known, Error)]
    result = Scalar("none") if draw(st.booleans()) else draw_type(draw, declared)
    result_stream = draw(st.booleans()) and draw(st.booleans())
    return Method(
        name,
        draw(parameters(declared)),
        result if result_stream else lent(result, draw(st.booleans())),
        result_stream=result_stream,
        errors=tuple(draw(st.lists(st.sampled_from(errors), max_size=2, unique=True))) if errors else (),
        idempotent=draw(st.booleans()),
        doc=draw(docs),
        deprecated=draw(deprecated),
    )


@st.composite
def parameters(draw: Draw, declared: Mapping[str, Declaration]) -> tuple[Parameter, ...]:
    names = draw(st.lists(_lower, max_size=4, unique=True))
    if names and draw(st.integers(0, 5)) == 0:
        return (Parameter(names[0], draw_type(draw, declared), stream=True),)
    positional = draw(st.integers(0, len(names)))
    positional_only = draw(st.integers(0, positional))
    with_default_from = draw(st.integers(0, positional))
    made = []
    for place, name in enumerate(names):
        kind, default = draw_type(draw, declared), MISSING
        keyword_only = place >= positional
        if draw(st.booleans()) if keyword_only else place >= with_default_from:
            kind, default = draw_default(draw, kind, declared)
        kind = lent(kind, draw(st.booleans()))
        made.append(Parameter(name, kind, default, keyword_only, place < positional_only, doc=draw(docs)))
    return tuple(made)


@st.composite
def modules(draw: Draw, services_min: int = 0) -> Module:
    """A whole file: declarations that name each other, and services that name them."""
    package = draw(st.sampled_from(["", "lab", "lab.search"]))
    prefix = f"{package}." if package else ""
    names = draw(st.lists(_capital, min_size=services_min, max_size=services_min + 5, unique=True))
    count = draw(st.integers(services_min, min(len(names), services_min + 1)))
    declared = draw(declarations(prefix, names[count:]))
    usable = {name: known for name, known in declared.items() if not isinstance(known, Const)}
    services = {}
    for bare in names[:count]:
        called = draw(
            st.lists(_lower.filter(lambda n: n not in _METHODS_TAKEN), min_size=1, max_size=4, unique=True)
        )
        made = tuple(draw(methods(name, usable)) for name in called)
        services[prefix + bare] = Service(
            prefix + bare,
            made,
            closure(made, usable.__getitem__),
            doc=draw(docs),
            deprecated=draw(deprecated),
        )
    return Module(package, declared, services, doc=draw(docs))
