"""The fields of classes that have some: dataclasses, attrs classes, Pydantic models, typed dicts."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING
from typing import Any, NamedTuple

from rrpc.codec import has_attrs, has_fields, is_model

from .aliases import expanded, substituted
from .mismatch import AnnotationError

_QUALIFIERS = {"Required", "NotRequired", "ReadOnly"}


class Member(NamedTuple):  # a dataclass can't have MISSING as a default
    """A field; a dataclass's are told in the words of ``dataclasses``, and so are the others'."""

    name: str
    """As the constructor takes it, and as it is sent."""
    attribute: str
    annotation: Any
    default: Any = MISSING
    default_factory: Any = MISSING
    kw_only: bool = False
    optional: bool = False
    """A key that a typed dict may be without."""

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is MISSING and self.default_factory is MISSING and not self.optional


def is_typed_dict(kind: Any) -> bool:
    """Returns whether ``kind`` is a class that ``TypedDict`` made."""
    return isinstance(kind, type) and issubclass(kind, dict) and hasattr(kind, "__total__")


def is_named_tuple(kind: Any) -> bool:
    """Returns whether ``kind`` is a class of named tuples."""
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def has_members(annotation: Any) -> bool:
    """Returns whether ``members_of`` tells the fields of ``annotation``, such as ``Pair`` or ``Pair[int]``."""
    kind = typing.get_origin(annotation) or annotation
    return has_fields(kind) or is_typed_dict(kind)


def members_of(annotation: Any) -> tuple[Member, ...]:
    """Returns the fields that an instance is made of, their types with the arguments of a generic class in place.

    Raises AnnotationError where a type can't be resolved.
    """
    kind: Any = typing.get_origin(annotation) or annotation
    if is_typed_dict(kind):
        hints = hints_of(annotation)
        return tuple(Member(n, n, _bare(h), optional=n in kind.__optional_keys__) for n, h in hints.items())
    if is_model(kind):
        return tuple(_of_model(name, field) for name, field in kind.model_fields.items())
    hints = hints_of(annotation)
    if has_attrs(kind):
        return tuple(_of_attrs(field, hints) for field in kind.__attrs_attrs__ if field.init)
    return tuple(
        Member(f.name, f.name, hints[f.name], f.default, f.default_factory, f.kw_only is True)
        for f in dataclasses.fields(kind)
        if f.init
    )


def fields_of(annotation: Any) -> dict[str, Any]:
    """Returns the names of the fields, and their annotations."""
    return {member.name: member.annotation for member in members_of(annotation)}


def _of_attrs(field: Any, hints: dict[str, Any]) -> Member:
    default: Any = field.default
    factory: Any = MISSING
    # By their names, as attrs isn't imported here.
    if type(default).__name__ == "Factory":
        factory, default = default.factory if not default.takes_self else _of_itself, MISSING
    elif getattr(default, "name", "") == "NOTHING":
        default = MISSING
    default, factory = _own(default, factory)
    return Member(field.alias, field.name, hints.get(field.name, Any), default, factory, field.kw_only)


def _of_model(name: str, field: Any) -> Member:
    annotation = expanded(field.annotation)
    if field.metadata:
        annotation = typing.Annotated[(annotation, *field.metadata)]
    default, factory = field.default, field.default_factory or MISSING
    if field.is_required() or factory is not MISSING:
        default = MISSING
    if factory is not MISSING and field.default_factory_takes_validated_data:
        factory = _of_itself
    default, factory = _own(default, factory)
    return Member(field.serialization_alias or field.alias or name, name, annotation, default, factory, True)


def _own(default: Any, factory: Any) -> tuple[Any, Any]:
    """A default that can change is made anew for each instance, as a dataclass wants it."""
    kind = type(default)
    if kind not in (list, dict, set):
        return default, factory
    return MISSING, functools.partial(kind, default) if default else kind


def _of_itself() -> Any:
    """Stands for a default that only the instance knows."""
    raise NotImplementedError


def _bare(annotation: Any) -> Any:
    """Removes ``Required``, ``NotRequired`` and ``ReadOnly`` from an annotation."""
    while getattr(typing.get_origin(annotation), "_name", None) in _QUALIFIERS:
        (annotation,) = typing.get_args(annotation)
    return annotation


def hints_of(annotation: Any) -> dict[str, Any]:
    """Returns the types of a class's attributes, those of a generic class with its arguments in place.

    An argument that isn't given is Any. Raises AnnotationError where a type can't be resolved.
    """
    kind: Any = typing.get_origin(annotation) or annotation
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except (NameError, AttributeError, TypeError) as error:
        raise AnnotationError(f"{kind.__name__}: {error}") from None
    done: set[str] = set()
    # Each class's own annotations, as a name may mean another type in a base with other arguments.
    for owner, meaning in _meanings(kind, typing.get_args(annotation)):
        for name in inspect.get_annotations(owner):
            if name in hints and name not in done:
                hints[name] = substituted(hints[name], meaning)
                done.add(name)
    return {name: expanded(hint) for name, hint in hints.items()}


def _meanings(kind: Any, arguments: tuple[Any, ...]) -> Iterator[tuple[Any, Mapping[Any, Any]]]:
    """The class and its generic bases, each with what its type parameters stand for there."""
    meaning = dict(zip(getattr(kind, "__parameters__", ()), arguments, strict=False))
    yield kind, meaning
    # In its own dict: a class that isn't generic inherits the attribute from a base that is.
    for base in kind.__dict__.get("__orig_bases__", kind.__bases__):
        origin = typing.get_origin(base) or base
        if isinstance(origin, type) and origin not in (object, typing.Generic):
            given = tuple(substituted(argument, meaning) for argument in typing.get_args(base))
            yield from _meanings(origin, given)
