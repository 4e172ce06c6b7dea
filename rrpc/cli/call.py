"""rrpc-call: call any method of any server, with JSON in and out."""

from __future__ import annotations

import functools
import json
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rrpc
from rrpc._interface import RECEIVES, SENDS, Interface, Method, Plan
from rrpc._options import did_you_mean
from rrpc._prose import for_terminal
from rrpc.schema import Service

from .calling.given import split, value_of
from .calling.metadata_option import metadata_of, show_metadata
from .calling.offered import Offered
from .calling.stream_calls import call_stream, checked
from .calling.to_json import Files, pretty, to_json
from .common import BadInput, Parser, command, debugging, one_line, problem, takes_files
from .tls_flags import add_tls_flags, tls_options

if TYPE_CHECKING:
    from rrpc.tracing import Trace

_EPILOG = """values:
  k=5  on=true  tags='["a", "b"]'  track='{"name": "walk"}'   JSON
  name=walk  unit=FOOT  day=2026-01-31                         bare text, names of enum members
  points=@points.npy  track=@track.json  blob=@file  k=@-      from a file, or from stdin
streams:
  a line of JSON for each item that comes; items to send are the arguments, or without any the lines of stdin
Exit codes: 0 done, 1 the call failed, 2 bad usage."""

_PRINTED = object()
"""In a result's place: the items of a stream, which are on stdout."""


@command("rrpc-call")
def main(arguments: Sequence[str] | None = None) -> int:
    """The command; gives its exit code."""
    options = _parser().parse_intermixed_args(arguments)
    try:
        client = rrpc.connect(
            options.address,
            timeout=options.timeout,
            connect_timeout=min(10.0, options.timeout),
            **tls_options(options),
        )
    except rrpc.InvalidArgument as error:
        return problem("rrpc-call", error)
    except rrpc.RpcError as error:
        return _failed(error, options.json)
    try:
        with client:
            return _run(client, options)
    except BadInput as error:
        return problem("rrpc-call", error)
    except rrpc.RpcError as error:
        if options.show_metadata:
            show_metadata(error.metadata)
        return _failed(error, options.json)


def _parser() -> Parser:
    parser = Parser(
        prog="rrpc-call",
        description="Call a method by reflection: arguments and result as JSON, arrays from and to .npy files.",
        epilog=_EPILOG,
        formatter_class=Parser.with_lines,
    )
    add = parser.add_argument
    add("address", metavar="ADDRESS", help="the server's, such as rrpc://127.0.0.1:7471")
    add("target", metavar="service.method", help="or: list, describe [service[.method]]")
    add("arguments", nargs="*", default=[], metavar="[name=]value", help="its arguments")
    add("--timeout", type=float, default=30.0, metavar="SECONDS", help="of the call (default: 30)")
    add(
        "--metadata",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="sent beside the arguments, any number of times; NAME-bin takes bytes in base64",
    )
    add(
        "--show-metadata",
        action="store_true",
        help="print what came beside the result or the error, on stderr",
    )
    add("--json", action="store_true", help="JSON for programs: on one line, arrays in full, errors too")
    takes_files(
        add(
            "-o",
            "--output",
            metavar="PATH",
            help="the result's array into PATH.npy, all arrays into the folder PATH/, "
            "text or bytes as they are into any other file",
        )
    )
    takes_files(
        add(
            "--trace",
            nargs="?",
            const="",
            metavar="FILE.json",
            help="show on stderr where the call's time went; into a file too, for ui.perfetto.dev",
        )
    )
    add_tls_flags(parser)
    return parser


def _run(client: rrpc.Client, options: Any) -> int:
    offered = Offered(client)
    if options.target in ("list", "describe"):
        from .calling.describe import describe, listing

        show = listing if options.target == "list" else describe
        try:
            print(for_terminal(show(offered, options.arguments, options.json)), flush=True)
        except rrpc.Unimplemented:
            raise BadInput("this server has no reflection, so it can't say what it offers") from None
        return 0
    output = None if options.output is None else _Output(options.output)
    try:
        service, method = offered.method(options.target)
        call = functools.partial(_call, client, service, method.name, options)
    except rrpc.Unimplemented:
        call = functools.partial(_call_untyped, client, options)
    with _traced(options.trace):
        result = call()
    if result is _PRINTED:
        return 0
    return _show(result, output, options.json)


@contextmanager
def _traced(path: str | None) -> Iterator[None]:
    """``--trace``, however the call ends."""
    if path is None:
        yield
        return
    if path and not path.endswith(".json"):
        raise BadInput(f"--trace {path}: FILE ends in .json; without one, write --trace behind the arguments")
    trace = rrpc.trace()
    try:
        with trace:
            yield
    finally:
        if trace.calls:
            trace.print(sys.stderr)
        if path:
            _save(trace, path)


def _save(trace: Trace, path: str) -> None:
    try:
        trace.save(path)
    except OSError as error:  # the call's result isn't lost for that
        problem("rrpc-call", BadInput(f"--trace {path}: {error.strerror}"))


def _call(client: rrpc.Client, service: Service, name: str, options: Any) -> Any:
    """Makes the call with types built from the server's description."""
    from rrpc.schema.to_python import to_interface

    interface = to_interface(service)
    if interface.methods[name].kind & SENDS:
        return _stream(client, interface.methods[name], options.arguments, {}, options)
    plan, values = _bound(interface, name, options.arguments)
    count = plan.positional_count
    named = dict(zip(plan.names[count:], values[count:], strict=True))
    if interface.methods[name].kind:
        return _stream(client, interface.methods[name], values[:count], named, options)
    result = _result(client, f"{service.name}.{name}", values[:count], named, options)
    return checked(result, interface.methods[name].result)


def _stream(
    client: rrpc.Client, method: Method, by_place: Sequence[Any], by_name: dict[str, Any], options: Any
) -> Any:
    client = client.with_options(timeout=options.timeout, metadata=metadata_of(options.metadata))
    if method.kind & RECEIVES and options.output is not None:
        raise BadInput("-o is for one result: the items of a stream are printed, a line each")
    result = call_stream(client, method, by_place, by_name, options)
    return _PRINTED if method.kind & RECEIVES else result


def _bound(interface: Interface, name: str, arguments: Sequence[str]) -> tuple[Plan, list[Any]]:
    """The method's plan, and all arguments in the order of its parameters, checked as its stub would."""
    method = interface.methods[name]
    plan = Plan(method.name, method.parameters, method.result)
    kinds = {parameter.name: parameter.annotation for parameter in method.parameters}
    positional, named = split(arguments)
    for given in named:
        if given not in kinds:
            raise BadInput(f"{method.name}() has no parameter {given!r}{did_you_mean(given, kinds)}")
    by_place = [value_of(text, text, kind) for text, kind in zip(positional, kinds.values(), strict=False)]
    by_place += positional[len(kinds) :]  # too many, as the plan says better
    by_name = {key: value_of(f"{key}={text}", text, kinds[key]) for key, text in named.items()}
    try:
        values = plan.bind(by_place, by_name)
        plan.encode_arguments(values)
    except rrpc.InvalidArgument as error:
        raise BadInput(str(error)) from None
    return plan, values


def _call_untyped(client: rrpc.Client, options: Any) -> Any:
    """Calls a method of a server without reflection. The server checks the arguments."""
    if "." not in options.target:
        raise BadInput(f"{options.target!r} is no method: write service.method")
    positional, named = split(options.arguments)
    by_place = [value_of(text, text) for text in positional]
    by_name = {key: value_of(f"{key}={text}", text) for key, text in named.items()}
    return _result(client, options.target, by_place, by_name, options)


def _result(
    client: rrpc.Client, method: str, by_place: Sequence[Any], by_name: dict[str, Any], options: Any
) -> Any:
    metadata = metadata_of(options.metadata)
    future = client.with_options(timeout=options.timeout, metadata=metadata).start(
        method, *by_place, **by_name
    )
    result = future.result()
    if options.show_metadata:
        show_metadata(future.metadata())
    return result


class _Output:
    """The file or folder that ``-o`` names."""

    def __init__(self, text: str) -> None:
        self.path = Path(text)
        self.folder = text.endswith("/") or self.path.is_dir()
        if not self.path.parent.is_dir():
            raise BadInput(f"-o {text}: there is no folder {self.path.parent}")

    def files(self) -> Files | None:
        return Files(self.path, self.folder) if self.folder or self.path.suffix == ".npy" else None

    def write(self, result: Any, shown: Any) -> Any:
        """A result into a file that is no array's; gives what is printed in its place."""
        binary = isinstance(result, (bytes, bytearray, memoryview))
        text = result if isinstance(result, str) else pretty(shown) + "\n"
        content = bytes(result) if binary else text.encode()
        self.path.write_bytes(content)
        return {"bytes": len(content), "file": str(self.path)}


def _show(result: Any, output: _Output | None, strict: bool) -> int:
    files = None if output is None else output.files()
    wrong: Exception | None = None
    try:
        shown = to_json(result, files, whole=strict or (output is not None and files is None))
        if files is not None:
            files.end()
        elif output is not None:
            shown = output.write(result, shown)
    except (OSError, ValueError) as error:  # the call is done: its result isn't lost for that
        wrong, shown = error, to_json(result, whole=strict)
    print(json.dumps(shown, allow_nan=False) if strict else for_terminal(pretty(shown)), flush=True)
    return (
        0 if wrong is None or output is None else problem("rrpc-call", BadInput(f"-o {output.path}: {wrong}"))
    )


def _failed(error: rrpc.RpcError, strict: bool) -> int:
    if debugging():
        traceback.print_exception(type(error), error, error.__traceback__)
    remote = isinstance(error, rrpc.RemoteError)
    message = one_line(f"{error.type_name}: {error.message}" if remote else error.message)  # type: ignore[attr-defined]
    details = to_json(error.details, whole=True) if error.details else None
    if strict:
        facts = {"code": error.code.name, "message": message} | ({"details": details} if details else {})
        print(json.dumps({"error": facts}), flush=True)
    print(f"rrpc-call: {error.code.name}: {message}", file=sys.stderr, flush=True)
    if details:
        print(f"rrpc-call: details: {json.dumps(details)}", file=sys.stderr, flush=True)
    if isinstance(error, rrpc.RemoteError) and error.remote_traceback:
        print(for_terminal(error.remote_traceback.rstrip()), file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
