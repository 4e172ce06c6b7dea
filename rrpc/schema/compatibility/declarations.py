"""Structs, enums, one-ofs, errors and constants of two versions; ``changes.py`` has the rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rrpc.schema import model
from rrpc.schema.closure import names_in, types_in
from rrpc.schema.idl_text import bare, value_text

from .comparison import Broken, Comparison, Use
from .fit import Fit

Uses = dict[str, Use]


def uses_of(services: Iterable[model.Service], declared: Mapping[str, model.Declaration]) -> Uses:
    """Returns the uses (argument, result or both) of each declaration that services use, by full name."""
    uses: Uses = {}

    def visit(names: Iterable[str], use: Use) -> None:
        # Not by recursion: a chain of declarations may be long.
        waiting = [*names][::-1]
        while waiting:
            name = waiting.pop()
            # Ends here where the use is known already, as structs may lead back to themselves.
            if use not in uses.get(name, Use.NONE):
                uses[name] = uses.get(name, Use.NONE) | use
                # Reversed, as the stack gives back the last one first.
                waiting += [inner for kind in types_in(declared[name]) for inner in names_in(kind)][::-1]

    for service in services:
        for method in service.methods:
            for parameter in method.parameters:
                visit(names_in(parameter.type), Use.ARGUMENT)
            visit(names_in(method.result), Use.RESULT)
            visit(method.errors, Use.RESULT)
    return uses


def compare_declarations(
    comparison: Comparison,
    old_uses: Uses,
    new_uses: Uses,
    all_of: tuple[Mapping[str, model.Declaration], Mapping[str, model.Declaration]],
) -> None:
    """Compares the declarations used in both versions, and all those in ``all_of`` of each version."""
    old_names, new_names = dict.fromkeys([*old_uses, *all_of[0]]), dict.fromkeys([*new_uses, *all_of[1]])
    # Packages of declarations don't travel, so one may have moved to another.
    by_bare = {bare(name): name for name in new_names}
    for name in old_names:
        old = comparison.old[name]
        other = name if name in new_names else by_bare.get(bare(name), "")
        if not other or type(comparison.new[other]) is not type(old):
            if name in all_of[0]:
                comparison.add(Broken.NONE, name, f"the {_WORDS[type(old)]} is gone", old)
            continue
        use = old_uses.get(name, Use.NONE) | new_uses.get(other, Use.NONE)
        _COMPARE[type(old)](comparison, other, old, comparison.new[other], use or Use.BOTH)


def _structs(
    comparison: Comparison,
    where: str,
    old: model.Struct | model.Error,
    new: model.Struct | model.Error,
    use: Use,
) -> None:
    before, after = ({field.name: field for field in each.fields} for each in (old, new))
    gone = {field.number: field for field in old.fields if field.name not in after}
    come = {field.number: field for field in new.fields if field.name not in before}
    for field in old.fields:
        if field.name in after:
            _fields(comparison, f"{where}.{field.name}", field, after[field.name], use)
    # A list of them, as the loop deletes some.
    for number in [number for number in gone if number in come]:
        if _renamed(comparison, where, gone[number], come[number]):
            del gone[number], come[number]
    _reservations(comparison, where, old, new, {field.number for field in new.fields} | after.keys())
    for field in gone.values():
        _removed(comparison, where, field, use, new.reserved)
    for field in come.values():
        _added(comparison, where, field, use)


def _fields(comparison: Comparison, where: str, old: model.Field, new: model.Field, use: Use) -> None:
    comparison.types(where, old.type, new.type, use, new, old)
    if old.number != new.number:
        comparison.add(Broken.NONE, where, f"its number was {old.number}, is now {new.number}", new, old)
    broken = Broken.OLD_CLIENT if Use.ARGUMENT in use else Broken.NONE
    defaults(comparison, where, old, new, broken)


def defaults(comparison: Comparison, where: str, old: Any, new: Any, broken: Broken) -> None:
    """``broken``: what breaks where a default goes."""
    if old.default is not model.MISSING and new.default is model.MISSING:
        comparison.add(broken, where, "its default is gone: it must be given", new, old)
    elif old.default is model.MISSING and new.default is not model.MISSING:
        comparison.add(Broken.NONE, where, f"has a default now, {value_text(new.default)}", new, old)
    elif value_text(old.default) != value_text(new.default):
        text = f"its default was {value_text(old.default)}, is now {value_text(new.default)}"
        comparison.add(Broken.NONE, where, text, new, old)


def _renamed(comparison: Comparison, where: str, old: model.Field, new: model.Field) -> bool:
    """Returns whether the field is the same under another name, and not another one that got its number."""
    if comparison.new_takes(new.type, old.type) is comparison.old_takes(old.type, new.type) is Fit.ALL:
        text = f"renamed to {new.name}; fields travel by name"
        comparison.add(Broken.BOTH, f"{where}.{old.name}", text, new, old, where_now=f"{where}.{new.name}")
        return True
    # Nothing on the wire: classes of Python number their fields as they stand. In a file it is a mistake.
    text = f"its number {old.number} is now that of {new.name}; reserve it and take another"
    comparison.add(Broken.OLD_CLIENT, f"{where}.{old.name}", text, new, old)
    return False


def _removed(
    comparison: Comparison, where: str, field: model.Field, use: Use, reserved: tuple[int | str, ...]
) -> None:
    text = "the field is gone"
    if not {field.number, field.name} <= set(reserved):
        text += f'; reserve {field.number} and "{field.name}"'
    breaks = Broken.NONE
    if field.default is model.MISSING:
        # New clients leave it out of arguments, and new servers out of results.
        breaks |= Broken.NEW_CLIENT if Use.ARGUMENT in use else Broken.NONE
        breaks |= Broken.OLD_CLIENT if Use.RESULT in use else Broken.NONE
        text += ", and peers of the old version need it"
    comparison.add(breaks, f"{where}.{field.name}", text, field)


def _added(comparison: Comparison, where: str, field: model.Field, use: Use) -> None:
    text, breaks = "the field is new", Broken.NONE
    if field.default is model.MISSING:
        # Old clients leave it out of arguments, and old servers out of results.
        breaks |= Broken.OLD_CLIENT if Use.ARGUMENT in use else Broken.NONE
        breaks |= Broken.NEW_CLIENT if Use.RESULT in use else Broken.NONE
        text += " and has no default, and peers of the old version don't send it"
    comparison.add(breaks, f"{where}.{field.name}", text, field)


def _reservations(
    comparison: Comparison,
    where: str,
    old: model.Struct | model.Error | model.Enum,
    new: model.Struct | model.Error | model.Enum,
    used: set[int | str],
) -> None:
    for each in old.reserved:
        shown = value_text(each)
        if each in used:
            comparison.add(Broken.OLD_CLIENT, where, f"{shown} was reserved and is used again", new, old)
        elif each not in new.reserved:
            comparison.add(Broken.NONE, where, f"{shown} is no longer reserved", new, old)


def _enums(comparison: Comparison, where: str, old: model.Enum, new: model.Enum, use: Use) -> None:
    before, after = ({member.name: member for member in each.members} for each in (old, new))
    by_value = {member.value: member for member in new.members}
    for member in old.members:
        now = after.get(member.name)
        if now is None:
            _lost_member(comparison, where, member, by_value.get(member.value), use)
        elif now.value != member.value:
            text = f"its value was {value_text(member.value)}, is now {value_text(now.value)}"
            comparison.add(Broken.BOTH, f"{where}.{member.name}", text, now)
    known = {member.value for member in old.members}
    for member in new.members:
        if member.name not in before and member.value not in known:
            text = "the member is new; peers of the old version refuse it"
            comparison.add(Broken.NONE, f"{where}.{member.name}", text, member)
    _reservations(comparison, where, old, new, {*after, *by_value})


def _lost_member(
    comparison: Comparison, where: str, old: model.EnumMember, same_value: model.EnumMember | None, use: Use
) -> None:
    if same_value is not None:
        text = f"{value_text(old.value)} is called {same_value.name} now"
        comparison.add(Broken.NONE, f"{where}.{old.name}", text, same_value)
        return
    # Old clients may send it in arguments, and old servers in results.
    breaks = Broken.OLD_CLIENT if Use.ARGUMENT in use else Broken.NONE
    breaks |= Broken.NEW_CLIENT if Use.RESULT in use else Broken.NONE
    text = f"the member is gone; reserve {value_text(old.value)} and {value_text(old.name)}"
    comparison.add(breaks, f"{where}.{old.name}", text, old)


def _one_ofs(comparison: Comparison, where: str, old: model.OneOf, new: model.OneOf, use: Use) -> None:
    comparison.types(where, model.Union(old.alternatives), model.Union(new.alternatives), use, new, old)


def _errors(comparison: Comparison, where: str, old: model.Error, new: model.Error, use: Use) -> None:
    if old.code != new.code:
        text = f"its code was {old.code}, is now {new.code}"
        comparison.add(Broken.OLD_CLIENT, where, text, new, old)
    _structs(comparison, where, old, new, use)


def _consts(comparison: Comparison, where: str, old: model.Const, new: model.Const, use: Use) -> None:
    if value_text(old.value) != value_text(new.value):
        text = f"was {value_text(old.value)}, is now {value_text(new.value)}"
        comparison.add(Broken.NONE, where, text, new, old)


_COMPARE: dict[type, Any] = {
    model.Struct: _structs,
    model.Enum: _enums,
    model.OneOf: _one_ofs,
    model.Error: _errors,
    model.Const: _consts,
}
_WORDS = {
    model.Struct: "struct",
    model.Enum: "enum",
    model.OneOf: "union",
    model.Error: "error",
    model.Const: "constant",
}
