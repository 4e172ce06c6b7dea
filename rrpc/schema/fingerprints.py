"""One number for a service's interface: equal where two versions mean the same to their peers.

What counts: the service's name; methods by name, with their parameters in order (name, type, default, kind, stream),
their results and whether they are idempotent; of the structs they reach the bare name and the fields by name with
type and default; of enums the members' names and values; of one-ofs the alternatives.

What doesn't: the order of methods, declarations, fields, members and alternatives; documentation, deprecation,
positions; constants; field numbers and what is reserved; packages of declarations, names of enums and of one-ofs;
whether a struct is frozen; which errors a method declares. ``f64`` is ``float``.
"""

# Two releases of rrpc must come to the same form of an interface: whatever changes a form here makes both ends
# compare descriptions each time they connect.

from __future__ import annotations

import hashlib
import json
from typing import Any

from . import model
from .effort import Effort, check_levels
from .idl_text import bare

_Form = Any  # what json.dumps takes
_FLOATS = ("float", "f64", "f32")
# One-ofs are written out wherever they are named, which a description can make exponential in its length. Text counts
# each time that it is written: so many characters, such as those of an enum's members, as one type.
_TYPES_MAX = 80_000
_TYPE_CHARS = 200
# Of types and alternatives, through the one-ofs that they name; each takes two frames of Python's stack or three here,
# and up to six in what is made of them. Files of the language have unions 16 deep at most.
_LEVELS_MAX = 100


def fingerprint(service: model.Service) -> str:
    """32 hex digits; TooIntricate for an interface that is too long to be written out."""
    return hashlib.sha256(_dump(_Canonical(service).form()).encode()).hexdigest()[:32]


def _dump(form: _Form) -> str:
    return json.dumps(form, sort_keys=True, separators=(",", ":"))


class _Canonical:
    """The canonical form of a service; structs stand in it once, by bare name."""

    def __init__(self, service: model.Service) -> None:
        self._service = service
        self._structs: dict[str, _Form] = {}  # by full name
        self._enums: dict[str, _Form] = {}
        self._waiting: list[model.Struct] = []  # named, and not written out yet
        self._open: list[str] = []  # one-ofs that are being written out
        self._effort = Effort(_TYPES_MAX)
        self._levels = 0

    def form(self) -> _Form:
        methods = self._sorted([self._method(method) for method in self._service.methods])
        # Not by recursion: a chain of structs may be long. The form of one is the same whatever leads to it.
        while self._waiting:
            struct = self._waiting.pop()
            self._structs[struct.name] = self._struct(struct)
        structs = self._sorted(list(self._structs.values()))
        return [self._service.name, methods, structs]

    def _method(self, method: model.Method) -> _Form:
        parameters = [self._parameter(parameter) for parameter in method.parameters]
        result = self._type(method.result)
        return [method.name, parameters, result, method.result_stream, method.idempotent]

    def _parameter(self, parameter: model.Parameter) -> _Form:
        kind = "keyword" if parameter.keyword_only else "position" if parameter.positional_only else ""
        default = self._default(parameter.default, parameter.type)
        return [parameter.name, self._type(parameter.type), default, kind, parameter.stream]

    def _sorted(self, forms: list[_Form]) -> list[_Form]:
        """Sorts forms and removes duplicates."""
        texts = {_dump(form) for form in forms}
        self._effort.spend(sum(map(len, texts)) // _TYPE_CHARS)
        return [json.loads(text) for text in sorted(texts)]

    def _enter(self, kind: model.Type) -> None:
        """Begins a type, or alternatives of one. An error ends all of it, so only success leaves the level."""
        self._levels += 1
        check_levels(self._levels, _LEVELS_MAX)
        self._effort.spend(1 + _own_chars(kind) // _TYPE_CHARS)

    def _type(self, kind: model.Type) -> _Form:
        self._enter(kind)
        form = self._written(kind)
        self._levels -= 1
        return form

    def _written(self, kind: model.Type) -> _Form:
        match kind:
            case model.Scalar(name):
                return "float" if name == "f64" else name
            # Whether it is borrowed doesn't count: that is a way of transport.
            case model.Array(item, dims):
                return ["array", item, None if dims is None else list(dims)]
            case model.List(item):
                return ["list", self._type(item)]
            case model.Set(item, frozen):
                return ["frozenset" if frozen else "set", self._type(item)]
            case model.Map(key, value):
                return ["map", self._type(key), self._type(value)]
            case model.Tuple(items, variadic):
                return ["tuple...", self._type(items[0])] if variadic else ["tuple", *map(self._type, items)]
            case model.Named(name):
                return self._named(self._service.declarations[name])
            case model.Opaque(text):
                return ["python", text]
            case model.Optional() | model.Union() | model.Literal():
                return self._one_of(self._alternatives(kind))

    def _named(self, declaration: model.Declaration) -> _Form:
        if isinstance(declaration, model.Enum):
            if declaration.name not in self._enums:
                members = [[member.name, _value(member.value)] for member in declaration.members]
                self._enums[declaration.name] = ["enum", *self._sorted(members)]
            return self._enums[declaration.name]
        if isinstance(declaration, model.OneOf):
            return self._one_of(self._alternatives(model.Named(declaration.name)))
        if not isinstance(declaration, model.Struct):
            raise ValueError(f"{declaration.name} is no type")
        if declaration.name not in self._structs:
            self._structs[declaration.name] = None  # until its turn comes
            self._waiting.append(declaration)
        return ["struct", bare(declaration.name)]

    def _struct(self, struct: model.Struct) -> _Form:
        fields = [[f.name, self._type(f.type), self._default(f.default, f.type)] for f in struct.fields]
        return [bare(struct.name), *self._sorted(fields)]

    def _alternatives(self, kind: model.Type) -> list[_Form]:
        """Returns the forms of a type's alternatives: one per literal value, with nested one-ofs expanded."""
        self._enter(kind)
        forms = self._expanded(kind)
        self._levels -= 1
        return forms

    def _expanded(self, kind: model.Type) -> list[_Form]:
        match kind:
            case model.Optional(item):
                return ["none", *self._alternatives(item)]
            case model.Union(items):
                return [form for item in items for form in self._alternatives(item)]
            case model.Literal(values):
                return [["literal", _value(value)] for value in values]
            case model.Named(name) if isinstance(one_of := self._service.declarations[name], model.OneOf):
                if name in self._open:
                    # Counted from the innermost one-of, so that the form is the same wherever this one stands.
                    return [["one-of", self._open.index(name) - len(self._open)]]
                self._open.append(name)
                found = [form for item in one_of.alternatives for form in self._alternatives(item)]
                self._open.pop()
                return found
        return [self._type(kind)]

    def _one_of(self, alternatives: list[_Form]) -> _Form:
        forms = self._sorted(alternatives)
        return forms[0] if len(forms) == 1 else ["one-of", *forms]

    def _default(self, value: Any, kind: model.Type) -> _Form:
        return [] if value is model.MISSING else [_value(self._as_of(value, kind))]

    def _as_of(self, value: Any, kind: model.Type) -> Any:
        """The one of the ways to write a default that the others are turned into."""
        match kind:
            case model.Optional(item):
                return self._as_of(value, item)
            case model.Scalar(name) if name in _FLOATS and type(value) is int:
                return float(value)
            case model.List(item) if isinstance(value, (tuple, list)):
                return tuple(self._as_of(each, item) for each in value)
            case model.Tuple((item,), variadic=True) if isinstance(value, (tuple, list)):
                return tuple(self._as_of(each, item) for each in value)
            case model.Tuple(items) if isinstance(value, (tuple, list)) and len(value) == len(items):
                return tuple(map(self._as_of, value, items))
            case model.Map() if not value and value is not None:
                return {}
            case model.Set() if isinstance(value, (tuple, list)):
                # Sets have no order of their own.
                return tuple(sorted(value, key=repr))
        return value


def _own_chars(kind: model.Type) -> int:
    """Returns about the characters that a type is written in, without those of the types that it is made of."""
    match kind:
        case model.Array(dims=dims):
            return sum(len(str(dim)) for dim in dims or ())
        case model.Named(text) | model.Opaque(text):
            return len(text)
        case model.Literal(values):
            return sum(len(repr(value)) for value in values)
    return 0


def _value(value: Any) -> _Form:
    """A value with its kind, so that 1, 1.0, True and "1" are four."""
    if isinstance(value, (tuple, list)):
        return ["items", *map(_value, value)]
    if isinstance(value, dict):
        return ["map", *([_value(key), _value(item)] for key, item in value.items())]
    if isinstance(value, model.Opaque):
        return ["python", value.text]
    return [type(value).__name__, repr(value)]
