"""Interfaces made by hypothesis: printed, parsed, generated, imported, served and called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from live_values import Values, same
from made import examples
from processes import run
from schemas import modules
from two_versions import make_module

import rrpc
from rrpc.idl import PythonFiles, parse, print_module
from rrpc.schema import Method, Module, Service, service_of
from rrpc.schema.fingerprints import fingerprint

# Finding a smaller example takes longer than reading a large one.
MADE = settings(
    max_examples=examples(15),
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)


def text_of(module: Module) -> str:
    files = PythonFiles("0.1.0")
    files.add_module(parse(print_module(module), "made.rrpc"), "made.rrpc")
    return files.single()


def takes_stream(method: Method) -> bool:
    return any(parameter.stream for parameter in method.parameters)


def server_of(service: Service, base: Any, values: Values) -> Any:
    """Implements the base: every method keeps its arguments and gives a value of its result's type, of streams two."""

    def implement(method: Method) -> Any:
        def handler(self: Any, *arguments: Any, **named: Any) -> Any:
            self.given = list(arguments[0]) if takes_stream(method) else [*arguments, *named.values()]
            result = values.of(method.result)
            return [result, result] if method.result_stream else result

        return handler

    members = {method.name: implement(method) for method in service.methods}
    return type("Implemented", (base,), members)()


def called(method: Method, stub: Any, values: Values) -> tuple[list[Any], Any]:
    """What was given and what came."""
    if takes_stream(method):
        sent = [values.of(method.parameters[0].type) for _ in range(3)]
        came = stub(sent)
    else:
        positional = [values.of(p.type) for p in method.parameters if not p.keyword_only]
        named = {p.name: values.of(p.type) for p in method.parameters if p.keyword_only}
        sent, came = [*positional, *named.values()], stub(*positional, **named)
    return sent, list(came) if method.result_stream else came


def call_all(service: Service, made: Any) -> None:
    short = service.name.rpartition(".")[2]
    base, values = getattr(made, f"{short}Base"), Values(service.declarations, made)
    assert fingerprint(service_of(base)) == base.rpc_fingerprints[service.name] == fingerprint(service)
    assert service_of(getattr(made, f"Async{short}Base")) == service_of(base)
    implemented = server_of(service, base, values)
    with (
        rrpc.serve(implemented, listen="tcp://127.0.0.1:0", workers=1) as server,
        getattr(made, f"{short}Client")(server.addresses[0], timeout=20.0) as client,
    ):
        for method in service.methods:
            sent, came = called(method, getattr(client, method.name), values)
            result = values.of(method.result)
            assert same(came, [result, result] if method.result_stream else result), method
            assert same(implemented.given, sent), method


@given(modules(services_min=1))
@MADE
def test_every_interface_can_be_served_and_called(module: Module) -> None:
    made = make_module("made_interface", text_of(module))
    for service in module.services.values():
        call_all(service, made)


def test_the_text_is_as_formatters_and_checkers_want_it(tmp_path: Path) -> None:
    texts: list[str] = []

    @given(modules(services_min=1))
    @MADE
    def collect(module: Module) -> None:
        texts.append(text_of(module))

    collect()
    for number, text in enumerate(texts):
        (tmp_path / f"made_{number}.py").write_text(text)
    # Names and texts are hypothesis's: ambiguous letters, long lines.
    select = "--select E,F,I,UP,B,RUF --ignore E501,E741,E743,RUF001,RUF002,RUF003 --target-version py310"
    for command in (f"check --isolated {select} .", "format --isolated --check ."):
        run("-m", "ruff", *command.split(), cwd=tmp_path, timeout=100)
