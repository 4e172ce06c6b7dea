"""Methods and their parameters in two versions; ``changes.py`` has the rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from rrpc.schema import model
from rrpc.schema.closure import inner_types, types_in, with_inner
from rrpc.schema.idl_text import bare

from .comparison import Broken, Comparison, Use
from .declarations import defaults


def compare_methods(comparison: Comparison, old: model.Service, new: model.Service) -> None:
    """All methods of one service in two versions."""
    after = {method.name: method for method in new.methods}
    declared = _dims_of(comparison.old), _dims_of(comparison.new)
    for method in old.methods:
        where = f"{old.name}.{method.name}"
        if method.name not in after:
            comparison.add(Broken.OLD_CLIENT, f"{where}()", "the method is gone", method)
        else:
            _method(comparison, where, method, after[method.name], declared)
    before = {method.name for method in old.methods}
    for method in new.methods:
        if method.name not in before:
            comparison.add(Broken.NONE, f"{new.name}.{method.name}()", "the method is new", method)


def _method(
    comparison: Comparison,
    where: str,
    old: model.Method,
    new: model.Method,
    declared: tuple[set[str], set[str]],
) -> None:
    call = f"{where}()"
    if old.result_stream != new.result_stream:
        became = "a stream now" if new.result_stream else "no stream any more"
        comparison.add(Broken.BOTH, call, f"its result is {became}", new, old)
    meant = _meant(old, new, declared)
    results = meant[0].result, meant[1].result
    written = old.result, new.result
    comparison.types(call, *results, Use.RESULT, new, old, what="its result ", written=written)
    if old.idempotent and not new.idempotent:
        text = "it isn't idempotent any more, and callers may repeat it"
        comparison.add(Broken.OLD_CLIENT, call, text, new, old)
    elif new.idempotent and not old.idempotent:
        comparison.add(Broken.NONE, call, "it is idempotent now", new, old)
    was, now = ([bare(name) for name in each.errors] for each in (old, new))
    for name in was:
        if name not in now:
            comparison.add(Broken.NONE, call, f"it doesn't declare {name} any more", new, old)
    for name in now:
        if name not in was:
            comparison.add(Broken.NONE, call, f"it declares {name} now", new, old)
    _parameters(comparison, where, old.parameters, new.parameters, meant)


def _parameters(
    comparison: Comparison,
    where: str,
    old: tuple[model.Parameter, ...],
    new: tuple[model.Parameter, ...],
    meant: tuple[model.Method, model.Method],
) -> None:
    before, after = ({parameter.name: parameter for parameter in each} for each in (old, new))
    pairs = _pairs(old, new, before, after)
    if pairs is None:
        orders = [", ".join(p.name for p in each if not p.keyword_only) for each in (old, new)]
        text = f"the order of its parameters was {orders[0]}, is now {orders[1]}"
        comparison.add(Broken.BOTH, f"{where}()", text, *new, *old)
        pairs = {name: name for name in before if name in after}
    types = [{parameter.name: parameter.type for parameter in method.parameters} for method in meant]
    for name, other in pairs.items():
        was, now, place = before[name], after[other], f"{where}({name})"
        if name != other:
            breaks = Broken.NONE if was.positional_only and now.positional_only else Broken.BOTH
            comparison.add(breaks, place, f"renamed to {other}", now, was, where_now=f"{where}({other})")
        _parameter(comparison, place, was, now)
        written = was.type, now.type
        comparison.types(place, types[0][name], types[1][other], Use.ARGUMENT, now, was, written=written)
    for parameter in old:
        if parameter.name not in pairs:
            # New clients don't send it, which only old servers with a default bear. Old clients may send it, and new
            # servers refuse it.
            breaks = Broken.BOTH if parameter.default is model.MISSING else Broken.OLD_CLIENT
            comparison.add(breaks, f"{where}({parameter.name})", "the parameter is gone", parameter)
    for parameter in new:
        if parameter.name not in pairs.values():
            text, breaks = "the parameter is new", Broken.NONE
            if parameter.default is model.MISSING:
                # Old clients don't send it, and old servers refuse it.
                text, breaks = f"{text} and has no default", Broken.BOTH
            comparison.add(breaks, f"{where}({parameter.name})", text, parameter)


def _pairs(
    old: tuple[model.Parameter, ...],
    new: tuple[model.Parameter, ...],
    before: Mapping[str, model.Parameter],
    after: Mapping[str, model.Parameter],
) -> dict[str, str] | None:
    """Maps each old parameter's name to the matching new one's. Returns None if the order has changed."""
    by_place = [[p for p in each if not p.keyword_only] for each in (old, new)]
    pairs: dict[str, str] = {}
    for was, now in zip(*by_place, strict=False):
        if was.name != now.name and (was.name in after or now.name in before):
            return None
        pairs[was.name] = now.name
    return pairs | {name: name for name in before if name in after}


def _parameter(comparison: Comparison, where: str, old: model.Parameter, new: model.Parameter) -> None:
    if new.keyword_only and not old.keyword_only:
        comparison.add(Broken.OLD_CLIENT, where, "it can be given by name only now", new, old)
    if new.positional_only and not old.positional_only:
        comparison.add(Broken.OLD_CLIENT, where, "it can be given by position only now", new, old)
    if (old.keyword_only and not new.keyword_only) or (old.positional_only and not new.positional_only):
        how = "position" if old.keyword_only else "name"
        comparison.add(Broken.NONE, where, f"it can be given by {how} too now", new, old)
    if old.stream != new.stream:
        became = "a stream now" if new.stream else "no stream any more"
        comparison.add(Broken.BOTH, where, f"it is {became}", new, old)
    defaults(comparison, where, old, new, Broken.OLD_CLIENT)


# --- names of dimensions -----------------------------------------------------------------------------


def _meant(
    old: model.Method, new: model.Method, declared: tuple[set[str], set[str]]
) -> tuple[model.Method, model.Method]:
    """The methods with dimensions called the same where they mean the same, and nothing where they bind nothing.

    What structs (``declared``) and parameters name too keeps its name: they tie it to more than the method shows.
    """
    free = [_free_names(old, declared[0]), _free_names(new, declared[1])]
    counts = [Counter(_dims(method)) for method in (old, new)]
    # Names that tie several places together, and that only one of the versions has: they may have been renamed.
    only = [
        [name for name in count if count[name] > 1 and name in names and name not in other]
        for count, names, other in zip(counts, free, counts[::-1], strict=True)
    ]
    renamed = dict(zip(only[1], only[0], strict=False)) if len(only[0]) == len(only[1]) else {}

    def called(count: Counter[str], names: set[str]) -> Callable[[str], str | None]:
        return lambda name: None if name in names and count[name] == 1 else renamed.get(name, name)

    return _renamed(old, called(counts[0], free[0])), _renamed(new, called(counts[1], free[1]))


def _kinds(method: model.Method) -> Iterator[model.Type]:
    for parameter in method.parameters:
        yield parameter.type
    yield method.result


def _dims(method: model.Method) -> Iterator[str]:
    for kind in _kinds(method):
        yield from _dims_in(kind)


def _dims_in(kind: model.Type) -> Iterator[str]:
    if isinstance(kind, model.Array):
        yield from (dim for dim in kind.dims or () if isinstance(dim, str))
    for inner in inner_types(kind):
        yield from _dims_in(inner)


def _dims_of(declared: Mapping[str, model.Declaration]) -> set[str]:
    """The names of dimensions in declarations, which all methods share."""
    return {dim for each in declared.values() for kind in types_in(each) for dim in _dims_in(kind)}


def _free_names(method: model.Method, declared: set[str]) -> set[str]:
    """The names of dimensions that nothing but the method's own arrays has."""
    sizes = {p.name for p in method.parameters if isinstance(p.type, model.Scalar)}
    return set(_dims(method)) - sizes - declared


def _renamed(method: model.Method, called: Callable[[str], str | None]) -> model.Method:
    def again(kind: model.Type) -> model.Type:
        if not isinstance(kind, model.Array) or kind.dims is None:
            return with_inner(kind, again)
        dims = tuple(called(dim) if isinstance(dim, str) else dim for dim in kind.dims)
        return replace(kind, dims=dims)

    parameters = tuple(replace(parameter, type=again(parameter.type)) for parameter in method.parameters)
    return replace(method, parameters=parameters, result=again(method.result))
