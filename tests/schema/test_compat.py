"""What changed between two versions of an interface, and who notices."""

from hypothesis import given, settings
from made import examples
from schemas import modules
from test_fingerprint import edits

from rrpc import idl
from rrpc import schema as s
from rrpc.schema.compatibility import Broken, compare, compare_services, fit

OLD, NEW, BOTH, NOTE = "OLD_CLIENT", "NEW_CLIENT", "BOTH", "NONE"


def _changes(old: str, new: str) -> list[str]:
    modules = [
        idl.parse(f"package lab;\n{text}", name) for text, name in ((old, "old.rrpc"), (new, "new.rrpc"))
    ]
    return [f"{change.breaks.name} {change}" for change in compare(*modules)]


# A rule to a line: old, new, and each change with the pairs that it breaks. In a parameter ("p: ..."), a result
# ("-> ...") or a struct used in arguments, results or both ("S ...", which is S for short).
ARGUMENT, RESULT = "service L { m(p: %s); }", "service L { m() -> %s; }"
FIELD = "struct S { 1: a: int; %s } service L { m(s: S) -> S; }"
IN_FIELD = "struct S { 1: a: int; %s } service L { m(s: S); }"
OUT_FIELD = "struct S { 1: a: int; %s } service L { m() -> S; }"
CALL = "service L { %s }"
ENUM = "enum E { %s } service L { m(e: E) -> E; }"
PICK = "struct S { 1: a: int; } union U = %s; service L { m(u: U) -> U; }"

METHODS = [
    (CALL, "m(); n();", "m();", [f"{OLD} lab.L.n(): the method is gone"]),
    (CALL, "m();", "m(); n();", [f"{NOTE} lab.L.n(): the method is new"]),
    (
        CALL,
        "m() [idempotent];",
        "m();",
        [f"{OLD} lab.L.m(): it isn't idempotent any more, and callers may repeat it"],
    ),
    (CALL, "m();", "m() [idempotent];", [f"{NOTE} lab.L.m(): it is idempotent now"]),
    (CALL, "m() -> int;", "m() -> stream int;", [f"{BOTH} lab.L.m(): its result is a stream now"]),
    (CALL, "m(p: stream int);", "m(p: int);", [f"{BOTH} lab.L.m(p): it is no stream any more"]),
    (CALL, "m();", 'm() [deprecated = "x"];', []),
    (CALL, "m(); n();", "/// Docs.\n n(); m();", []),
    (
        "%s",
        "service L { m(); } service K { m(); }",
        "service L { m(); }",
        [f"{OLD} lab.K: the service is gone"],
    ),
    (
        "%s",
        "service L { m(); }",
        "service L { m(); } service K { m(); }",
        [f"{NOTE} lab.K: the service is new"],
    ),
]
PARAMETERS = [
    (CALL, "m(a: int);", "m(a: int, b: int = 1);", [f"{NOTE} lab.L.m(b): the parameter is new"]),
    (CALL, "m(a: int, *, c: int = 1);", "m(a: int, b: int = 1, *, c: int = 1);",
     [f"{NOTE} lab.L.m(b): the parameter is new"]),
    (CALL, "m(*, c: int = 1);", "m(*, b: int = 2, c: int = 1);", [f"{NOTE} lab.L.m(b): the parameter is new"]),
    (CALL, "m(a: int);", "m(a: int, b: int);", [f"{BOTH} lab.L.m(b): the parameter is new and has no default"]),
    (CALL, "m(a: int, b: int = 1);", "m(a: int);", [f"{OLD} lab.L.m(b): the parameter is gone"]),
    (CALL, "m(a: int, b: int);", "m(a: int);", [f"{BOTH} lab.L.m(b): the parameter is gone"]),
    (CALL, "m(a: int);", "m(z: int);", [f"{BOTH} lab.L.m(a): renamed to z"]),
    (CALL, "m(a: int, /);", "m(z: int, /);", [f"{NOTE} lab.L.m(a): renamed to z"]),
    (CALL, "m(a: int, b: int);", "m(b: int, a: int);",
     [f"{BOTH} lab.L.m(): the order of its parameters was a, b, is now b, a"]),
    (CALL, "m(b: int = 1);", "m(a: int = 1, b: int = 1);",
     [f"{BOTH} lab.L.m(): the order of its parameters was b, is now a, b", f"{NOTE} lab.L.m(a): the parameter is new"]),
    (CALL, "m(*, a: int, b: int);", "m(*, b: int, a: int);", []),
    (CALL, "m(a: int);", "m(*, a: int);", [f"{OLD} lab.L.m(a): it can be given by name only now"]),
    (CALL, "m(a: int);", "m(a: int, /);", [f"{OLD} lab.L.m(a): it can be given by position only now"]),
    (CALL, "m(*, a: int);", "m(a: int);", [f"{NOTE} lab.L.m(a): it can be given by position too now"]),
    (CALL, "m(a: int, /);", "m(a: int);", [f"{NOTE} lab.L.m(a): it can be given by name too now"]),
    (CALL, "m(a: int = 1);", "m(a: int);", [f"{OLD} lab.L.m(a): its default is gone: it must be given"]),
    (CALL, "m(a: int);", "m(a: int = 1);", [f"{NOTE} lab.L.m(a): has a default now, 1"]),
    (CALL, "m(a: int = 1);", "m(a: int = 2);", [f"{NOTE} lab.L.m(a): its default was 1, is now 2"]),
]  # fmt: skip
FIELDS = [
    (FIELD, "", "2: b: int = 1;", [f"{NOTE} lab.S.b: the field is new"]),
    (FIELD, "", "2: b: int;",
     [f"{BOTH} lab.S.b: the field is new and has no default, and peers of the old version don't send it"]),
    (IN_FIELD, "", "2: b: int;",
     [f"{OLD} lab.S.b: the field is new and has no default, and peers of the old version don't send it"]),
    (OUT_FIELD, "", "2: b: int;",
     [f"{NEW} lab.S.b: the field is new and has no default, and peers of the old version don't send it"]),
    (FIELD, "2: b: int = 1;", "", [f'{NOTE} lab.S.b: the field is gone; reserve 2 and "b"']),
    (FIELD, "2: b: int = 1;", 'reserved 2, "b";', [f"{NOTE} lab.S.b: the field is gone"]),
    (FIELD, "2: b: int;", 'reserved 2, "b";',
     [f"{BOTH} lab.S.b: the field is gone, and peers of the old version need it"]),
    (IN_FIELD, "2: b: int;", 'reserved 2, "b";',
     [f"{NEW} lab.S.b: the field is gone, and peers of the old version need it"]),
    (OUT_FIELD, "2: b: int;", 'reserved 2, "b";',
     [f"{OLD} lab.S.b: the field is gone, and peers of the old version need it"]),
    (FIELD, "2: b: int = 1;", "2: c: int = 1;", [f"{BOTH} lab.S.b: renamed to c; fields travel by name"]),
    (FIELD, "2: b: int = 1;", '2: c: string = "";',
     [f"{OLD} lab.S.b: its number 2 is now that of c; reserve it and take another",
      f'{NOTE} lab.S.b: the field is gone; reserve 2 and "b"', f"{NOTE} lab.S.c: the field is new"]),
    (FIELD, "2: b: int = 1;", "3: b: int = 1;", [f"{NOTE} lab.S.b: its number was 2, is now 3"]),
    (FIELD, "2: b: int = 1;", "2: b: int;", [f"{OLD} lab.S.b: its default is gone: it must be given"]),
    (OUT_FIELD, "2: b: int = 1;", "2: b: int;", [f"{NOTE} lab.S.b: its default is gone: it must be given"]),
    (FIELD, "2: b: int = 1;", "2: b: int = 2;", [f"{NOTE} lab.S.b: its default was 1, is now 2"]),
    (FIELD, "reserved 2;", "2: b: int = 1;",
     [f"{OLD} lab.S: 2 was reserved and is used again", f"{NOTE} lab.S.b: the field is new"]),
    (FIELD, 'reserved "b";', "2: b: int = 1;",
     [f'{OLD} lab.S: "b" was reserved and is used again', f"{NOTE} lab.S.b: the field is new"]),
    (FIELD, "reserved 2;", "", [f"{NOTE} lab.S: 2 is no longer reserved"]),
    ("%s", "struct S { 1: a: int; }", "frozen struct S { 1: a: int; }", []),
    ("%s", "struct S { 1: a: int; } struct T { }", "struct S { 1: a: int; }", [f"{NOTE} lab.T: the struct is gone"]),
    ("%s", "struct S { 1: a: int; }", "struct S { 1: a: string; }", [f"{BOTH} lab.S.a: int is now string"]),
    ("struct S { 1: s: S? = none; %s } service L { m(s: list<S>) -> map<string, S>; }", "", "2: b: int = 1;",
     [f"{NOTE} lab.S.b: the field is new"]),
    ("%s service L { m(s: S); }", "struct S { }", "struct T { } union S = T | string;",
     [f"{BOTH} lab.L.m(s): S means something else now", f"{NOTE} lab.S: the struct is gone"]),
    ("%s", "struct S { } service L { m(s: S); }", "struct T { } service L { m(s: T); }",
     [f"{BOTH} lab.L.m(s): S is now T", f"{NOTE} lab.S: the struct is gone"]),
]  # fmt: skip
ENUMS = [
    (ENUM, "A = 1;", "A = 1; B = 2;", [f"{NOTE} lab.E.B: the member is new; peers of the old version refuse it"]),
    (ENUM, "A = 1; B = 2;", "A = 1;", [f'{BOTH} lab.E.B: the member is gone; reserve 2 and "B"']),
    (ENUM, "A = 1; B = 2;", "A = 1; C = 2;", [f"{NOTE} lab.E.B: 2 is called C now"]),
    (ENUM, "A = 1; B = 2;", "A = 2; B = 1;",
     [f"{BOTH} lab.E.A: its value was 1, is now 2", f"{BOTH} lab.E.B: its value was 2, is now 1"]),
    (ENUM, 'A = 1;', 'A = "1";', [f'{BOTH} lab.E.A: its value was 1, is now "1"']),
    (ENUM, "A = 1; reserved 2;", "A = 1; B = 2;",
     [f"{NOTE} lab.E.B: the member is new; peers of the old version refuse it",
      f"{OLD} lab.E: 2 was reserved and is used again"]),
    ("enum E { %s } service L { m(e: E); }", "A = 1; B = 2;", "A = 1;",
     [f'{OLD} lab.E.B: the member is gone; reserve 2 and "B"']),
    ("enum E { %s } service L { m() -> E; }", "A = 1; B = 2;", "A = 1;",
     [f'{NEW} lab.E.B: the member is gone; reserve 2 and "B"']),
    ("%s", "enum E { A = 1; } service L { m(e: E) -> E; }", "enum F { A = 1; } service L { m(e: F) -> F; }",
     [f"{NOTE} lab.E: the enum is gone"]),
    ("%s", "enum E { A = 1; } service L { m(e: int) -> E; }", "enum E { A = 1; } service L { m(e: E) -> E; }",
     [f"{OLD} lab.L.m(e): int is now E"]),
]  # fmt: skip
ONE_OFS = [
    (PICK, "int | string", "string | int", []),
    (PICK, "int | string", "int | string | S", [f"{NOTE} lab.U: int | string is now int | string | S"]),
    (PICK, "int | string | S", "int | string", [f"{BOTH} lab.U: int | string | S is now int | string"]),
    ("%s", "union U = int | string; service L { m(u: U) -> U; }", "service L { m(u: int | string) -> int | string; }",
     [f"{NOTE} lab.U: the union is gone"]),
    (RESULT, "int | string", "int | string | bytes",
     [f"{NOTE} lab.L.m(): its result int | string is now int | string | bytes"]),
    (RESULT, "list<int | string>", "list<int | string | bytes>",
     [f"{NOTE} lab.L.m(): its result list<int | string> is now list<int | string | bytes>"]),
    (RESULT, "int | string", "(int | string)?",
     [f"{OLD} lab.L.m(): its result int | string is now (int | string)?"]),
    (RESULT, "int", "int | string", [f"{OLD} lab.L.m(): its result int is now int | string"]),
    (ARGUMENT, "int", "int | string", [f"{NOTE} lab.L.m(p): int is now int | string"]),
    (ARGUMENT, "int | string", "int", [f"{OLD} lab.L.m(p): int | string is now int"]),
    (RESULT, "literal<1, 2>", "literal<2, 1, 3>",
     [f"{NOTE} lab.L.m(): its result literal<1, 2> is now literal<2, 1, 3>"]),
    (ARGUMENT, "literal<1, 2>", "literal<1>", [f"{OLD} lab.L.m(p): literal<1, 2> is now literal<1>"]),
    (RESULT, "literal<1, 2>", "literal<1>", [f"{NEW} lab.L.m(): its result literal<1, 2> is now literal<1>"]),
]  # fmt: skip
# Wider and narrower types: of arguments a note and the old clients', of results the old and the new clients'.
WIDER = [
    ("i32", "i64"), ("u8", "i16"), ("i64", "int"), ("bool", "int"), ("int", "float"), ("f32", "float"),
    ("float", "complex"), ("int", "any"), ("int", "int?"), ("literal<1>", "int"), ('literal<"a">', "string"),
    ("literal<1>", "i8"), ("list<i8>", "list<i16>"), ("map<string, i8>", "map<string, i16>"), ("set<i8>", "set<int>"),
    ("tuple<i8, i8>", "tuple<i8, ...>"), ("tuple<i8, string>", "tuple<i16, string>"), ("list<int>", "any"),
    ("array<f32>", "array<any>"), ("array<f32>[3]", "array<f32>[_]"), ("array<f32>[n, n]", "array<f32>[a, b]"),
    ("array<f32>[_, 3]", "array<f32>"), ("array<f32>[]", "array<f32>"), ("literal<true>", "bool"),
]  # fmt: skip
OTHER = [
    ("int", "string"), ("bytes", "string"), ("i32", "u32"), ("list<int>", "set<int>"), ("set<int>", "frozenset<int>"),
    ("tuple<int>", "tuple<int, int>"), ("list<int>", "tuple<int, ...>"), ("array<f32>", "array<f64>"),
    ("array<f32>[3]", "array<f32>[4]"), ("array<f32>[_]", "array<f32>[_, _]"),
    ("literal<1>", "literal<2>"), ("list<i32>", "list<string>"), ("date", "datetime"), ("int", "list<int>"),
    ("map<string, int>", "map<int, int>"), ('literal<"a">', 'literal<b"a">'),
]  # fmt: skip
SAME = [
    ("array<f32>[n]", "borrowed<array<f32>[n]>"), ("list<array<f32>>", "list<borrowed<array<f32>>>"),
    ("float", "f64"), ("bytes", "buffer"), ("int | none", "int?"), ("array<f32>[n, d]", "array<f32>[_, _]"),
    ("array<f32>[n, n]", "array<f32>[m, m]"), ("tuple<array<f32>[a], array<f32>[a]>",
                                               "tuple<array<f32>[b], array<f32>[b]>"),
]  # fmt: skip
TYPES = [
    *((ARGUMENT, old, new, [f"{NOTE} lab.L.m(p): {old} is now {new}"]) for old, new in WIDER),
    *((RESULT, old, new, [f"{OLD} lab.L.m(): its result {old} is now {new}"]) for old, new in WIDER),
    *((ARGUMENT, old, new, [f"{OLD} lab.L.m(p): {old} is now {new}"]) for new, old in WIDER),
    *((RESULT, old, new, [f"{NEW} lab.L.m(): its result {old} is now {new}"]) for new, old in WIDER),
    *((ARGUMENT, old, new, [f"{BOTH} lab.L.m(p): {old} is now {new}"]) for old, new in OTHER),
    *((RESULT, old, new, [f"{BOTH} lab.L.m(): its result {old} is now {new}"]) for old, new in OTHER),
    *((place, old, new, []) for place in (ARGUMENT, RESULT) for old, new in SAME),
    *((place, new, old, []) for place in (ARGUMENT, RESULT) for old, new in SAME),
]
DIMENSIONS = [
    (CALL, "m(a: array<f32>[n], b: array<f32>[n]);", "m(a: array<f32>[n], b: array<f32>[k]);",
     [f"{NOTE} lab.L.m(a): array<f32>[n] means something else now",
      f"{NOTE} lab.L.m(b): array<f32>[n] is now array<f32>[k]"]),
    (CALL, "m(a: array<f32>[n], b: array<f32>[k]);", "m(a: array<f32>[n], b: array<f32>[n]);",
     [f"{OLD} lab.L.m(a): array<f32>[n] means something else now",
      f"{OLD} lab.L.m(b): array<f32>[k] is now array<f32>[n]"]),
    (CALL, "m(a: array<f32>[n], b: list<array<f32>[n]>) -> array<f32>[n];",
     "m(a: array<f32>[r], b: list<array<f32>[r]>) -> array<f32>[r];", []),
    (CALL, "m(a: array<f32>[k], k: int);", "m(a: array<f32>[n], k: int);",
     [f"{NOTE} lab.L.m(a): array<f32>[k] is now array<f32>[n]"]),
    ("struct S { 1: v: array<f32>[d]; } service L { %s }", "m(a: array<f32>[d], s: S);", "m(a: array<f32>[e], s: S);",
     [f"{NOTE} lab.L.m(a): array<f32>[d] is now array<f32>[e]"]),
]  # fmt: skip
ERROR = "error X(%s) { 1: a: int; } service L { m() throws X; }"
REST = [
    (ERROR, "not_found", "internal", [f"{OLD} lab.X: its code was not_found, is now internal"]),
    ("error X(internal) { %s } service L { m() throws X; }", "", "1: a: int;",
     [f"{NEW} lab.X.a: the field is new and has no default, and peers of the old version don't send it"]),
    ("error X(internal) { } service L { %s }", "m();", "m() throws X;", [f"{NOTE} lab.L.m(): it declares X now"]),
    ("error X(internal) { } service L { %s }", "m() throws X;", "m();",
     [f"{NOTE} lab.L.m(): it doesn't declare X any more"]),
    ("const C: int = %s;", "1", "2", [f"{NOTE} lab.C: was 1, is now 2"]),
    ("%s", "const C: int = 1;", "", [f"{NOTE} lab.C: the constant is gone"]),
]  # fmt: skip
ALL = [*METHODS, *PARAMETERS, *FIELDS, *ENUMS, *ONE_OFS, *TYPES, *DIMENSIONS, *REST]


def test_every_rule() -> None:
    wrong = []
    for frame, old, new, expected in ALL:
        found = _changes(frame % old, frame % new)
        if found != expected:
            wrong.append(f"{frame}: {old} -> {new}\n  found {found}\n  not   {expected}")
    assert not wrong, "\n".join(wrong)


def test_positions() -> None:
    old = idl.parse("package lab;\nservice L {\n  m(a: int);\n  n();\n}", "old.rrpc")
    new = idl.parse("package lab;\n\nservice L {\n  m(a: string);\n}", "new.rrpc")
    changes = {change.where: change.position for change in compare(old, new)}
    assert changes["lab.L.m(a)"] is not None
    assert (changes["lab.L.m(a)"].file, changes["lab.L.m(a)"].line) == ("new.rrpc", 4)
    assert changes["lab.L.n()"] is not None
    assert (changes["lab.L.n()"].file, changes["lab.L.n()"].line) == ("old.rrpc", 4)


def test_structs_of_imports_and_other_packages() -> None:
    """What moves into a package of its own is the same on the wire."""
    row = s.Struct("lab.Row", (s.Field(1, "id", s.Scalar("int")),))
    moved = s.Struct("common.Row", (s.Field(1, "id", s.Scalar("string")),))

    def service(struct: s.Struct) -> s.Service:
        method = s.Method("m", (s.Parameter("row", s.Named(struct.name)),), s.Scalar("none"))
        return s.Service("lab.L", (method,), {struct.name: struct})

    assert compare_services(service(row), service(row)) == []
    changes = compare_services(service(row), service(moved))
    assert [str(change) for change in changes] == ["common.Row.id: int is now string"]
    assert changes[0].breaks is Broken.BOTH
    assert changes[0].breaking


def test_one_ofs_that_name_themselves() -> None:
    def json(*more: s.Type) -> s.OneOf:
        return s.OneOf("lab.Json", (s.Scalar("string"), s.List(s.Named("lab.Json")), *more))

    plain, more = {"lab.Json": json()}, {"lab.Json": json(s.Scalar("int"))}
    assert fit.Receiver(plain, plain).takes(s.Named("lab.Json"), s.List(s.Named("lab.Json"))) is fit.Fit.ALL
    assert fit.Receiver(plain, more).takes(json().alternatives[1], json().alternatives[1]) is fit.Fit.ALL


@given(modules(services_min=1))
@settings(max_examples=examples(8))
def test_what_fingerprints_see_is_told(module: s.Module) -> None:
    assert compare(module, module) == []
    for service in module.services.values():
        assert compare_services(service, service) == []
        for edited in edits(service)[1:]:  # the first is another service
            assert compare_services(service, edited)
            assert compare_services(edited, service)


@given(modules(services_min=1), modules(services_min=1))
@settings(max_examples=examples(10))
def test_any_two_can_be_compared(old: s.Module, new: s.Module) -> None:
    for change in compare(old, new):
        assert change.where
        assert "\n" not in str(change)
    for service in old.services.values():
        for other in new.services.values():
            compare_services(service, other)
