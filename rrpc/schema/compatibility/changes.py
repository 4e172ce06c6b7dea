"""Finds the changes between two versions of an interface, and whether a peer of the other version notices.

Clients and servers of two versions form four pairs. In two of them the versions differ; a change is
*breaking* if one of these two fails, except where a caller uses something that only the new version has.

=====================================  ==========================================================================
change                                 verdict
=====================================  ==========================================================================
service, method removed                breaking
service, method added                  note: old servers answer Unimplemented
parameter with a default added         note, at the end of those given by position, or anywhere by name
parameter without a default added      breaking
parameter removed                      breaking
parameter renamed                      breaking; a note where it is given by position only
parameters reordered                   breaking; nothing for those given by name only
parameter by position only, by name    breaking where a way to give it goes, a note where one comes
only
default of a parameter removed         breaking
default changed, added                 note: callers send their own
stream added or removed                breaking
idempotent removed                     breaking: callers may repeat the method; added: note
declared error added, removed          note; another status code: breaking
field with a default added             note
field without a default added          breaking
field with a default removed           note: reserve its number and name
field without a default removed        breaking
field renamed                          breaking: fields travel by name
number of a field used again           breaking, though it doesn't travel: nothing at connect
field's number changed                 note: it doesn't travel
field's default removed                breaking in arguments, note in results
reserved number, name or value used    breaking
no longer reserved                     note
enum member added                      note: peers of the old version refuse it
enum member removed                    breaking
enum member renamed                    note: the value travels
enum member with another value         breaking
enum, one-of renamed                   nothing; struct renamed: breaking, it travels under its name
type of an argument takes more         note: ``i32`` to ``i64``, ``T`` to ``T?``, ``array<f32>`` to ``array<any>``
type of an argument takes less         breaking
type of a result takes more or less    breaking
one-of or literal takes more           note, in results too, as for an enum member
one-of or literal takes less           breaking
name of a dimension changed            nothing, where it means the same for the call
constant changed, removed              note: it doesn't travel
=====================================  ==========================================================================

A struct's fields are judged as arguments, results or both, depending on where the services use the struct. If
no service uses it, its fields are judged as both.
"""

from __future__ import annotations

from collections.abc import Sequence

from rrpc.schema.model import Declaration, Module, Service

from .comparison import Broken, Change, Comparison
from .declarations import compare_declarations, uses_of
from .methods import compare_methods

__all__ = ["Broken", "Change", "compare", "compare_services", "obstacles"]


def compare(old: Module, new: Module) -> list[Change]:
    """The changes from one version of a file to another, services first."""
    comparison = Comparison(_declarations(old), _declarations(new))
    for name, service in old.services.items():
        if name not in new.services:
            comparison.add(Broken.OLD_CLIENT, name, "the service is gone", service)
        else:
            compare_methods(comparison, service, new.services[name])
    for name, service in new.services.items():
        if name not in old.services:
            comparison.add(Broken.NONE, name, "the service is new", service)
    uses = [uses_of(each.services.values(), _declarations(each)) for each in (old, new)]
    compare_declarations(comparison, uses[0], uses[1], (old.declarations, new.declarations))
    return comparison.changes


def compare_services(old: Service, new: Service) -> list[Change]:
    """The changes from one version of a service to another, and of what it uses."""
    comparison = Comparison(old.declarations, new.declarations)
    compare_methods(comparison, old, new)
    uses = [uses_of([each], each.declarations) for each in (old, new)]
    compare_declarations(comparison, uses[0], uses[1], ({}, {}))
    return comparison.changes


def obstacles(client: Service, server: Service, changes: Sequence[Change]) -> list[Change]:
    """Returns why a client with one version can't work with a server that has the other, whichever is newer.

    The reasons are among ``changes``, those from the client's version to the server's. What fails if the client
    is old and would be fine if it were the newer one (it has a method more) is no obstacle, nor the other way round.
    """
    found = [change for change in changes if Broken.OLD_CLIENT in change.breaks]
    if not found:
        return []
    backward = [change for change in compare_services(server, client) if Broken.NEW_CLIENT in change.breaks]
    places = {place for change in backward for place in (change.where, change.where_now)}
    return [change for change in found if {change.where, change.where_now} & places - {""}]


def _declarations(module: Module) -> dict[str, Declaration]:
    found = dict(module.declarations)
    for service in module.services.values():
        found |= service.declarations
    return found
