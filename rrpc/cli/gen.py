"""rrpc-gen: Python from interfaces and .rrpc files from Python and servers, their comparison and their format."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rrpc import idl  # load and print_module need lark, and import it when they are asked for
from rrpc._interface import AnnotationError
from rrpc._prose import for_terminal
from rrpc.errors import RpcError
from rrpc.idl import SIDES, IdlError, PythonFiles
from rrpc.schema import Module, Service, modules_of

from .common import BadInput, Parser, command, debugging, find_service, problem, takes_files, tool_version
from .generated_files import Output
from .tls_flags import add_tls_flags, tls_options

if TYPE_CHECKING:
    from rrpc.schema.compatibility import Change

_COMMENT_OR_TEXT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_EPILOG = """rrpc-gen check OLD NEW tells whether programs of two versions of an interface can talk to each other;
rrpc-gen format FILE.rrpc writes files in the usual form. See their --help."""


@command("rrpc-gen")
def main(arguments: Sequence[str] | None = None) -> int:
    """The command; gives its exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    commands = {"check": _check, "format": _format}
    try:
        if arguments and arguments[0] in commands:
            return commands[arguments[0]](arguments[1:])
        return _generate(arguments)
    except IdlError as error:
        print(error, file=sys.stderr)
        return 2
    except (BadInput, AnnotationError, RpcError) as error:
        return problem("rrpc-gen", error)
    except BrokenPipeError:
        raise
    except Exception as error:
        if debugging():
            raise
        return problem("rrpc-gen", error)


def _generate(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="rrpc-gen",
        description="Write typed clients, and bases for servers, of services.",
        epilog=_EPILOG,
    )
    inputs = parser.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="module:Service of a Python service, a .rrpc file, or the address of a server, such as "
        "rrpc://127.0.0.1:7471: all its services but the built-in ones",
    )
    output_path = parser.add_argument(
        "-o",
        "--output",
        metavar="FILE|FOLDER",
        help="a .py file for all of it, or a folder with one for each input (default: stdout)",
    )
    takes_files(inputs)
    takes_files(output_path)
    _add_include(parser)
    parser.add_argument(
        "--only", choices=SIDES, help="leave out what the other side needs: the server bases, the clients"
    )
    parser.add_argument(
        "--idl", action="store_true", help="write a .rrpc file of Python services or a server's instead"
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit code 1 if the output isn't up to date"
    )
    _add_server_flags(parser)
    options = parser.parse_args(arguments)
    if options.check and options.output is None:
        parser.error("--check needs -o")
    output = Output(options.output)
    texts = _idl_texts(options, output) if options.idl else _python_texts(options, output)
    return output.check(texts) if options.check else output.write(texts)


def _add_include(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-I",
        "--include",
        metavar="FOLDER",
        action="append",
        default=[],
        type=Path,
        help="where imported .rrpc files are looked for, after the importing file's own folder",
    )


def _add_server_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--service",
        metavar="NAME",
        action="append",
        default=[],
        help="of a server only this one; may be repeated",
    )
    parser.add_argument(
        "--timeout", type=float, default=10.0, metavar="SECONDS", help="for asking a server (default: 10)"
    )
    add_tls_flags(parser)


def _is_address(given: str) -> bool:
    return "://" in given


def _services_of(address: str, options: argparse.Namespace) -> list[Service]:
    """Returns what a server says of its services by reflection."""
    import rrpc

    from .calling.offered import Offered

    timeout = options.timeout
    with rrpc.connect(address, timeout=timeout, connect_timeout=timeout, **tls_options(options)) as client:
        offered = Offered(client)
        names = options.service or [name for name in offered.names() if not name.startswith("rrpc.")]
        if not names:
            raise BadInput(f"{address} has no services but the built-in ones")
        return [offered.service(name) for name in names]


def _python_texts(options: argparse.Namespace, output: Output) -> dict[str, str]:
    files = PythonFiles(tool_version(), [options.only] if options.only else SIDES)
    addresses = [given for given in options.inputs if _is_address(given)]
    offered = [service for address in addresses for service in _services_of(address, options)]
    for path, module in modules_of(offered).items():
        files.add_module(module, path, source=", ".join(addresses))
    for given in options.inputs:
        if _is_address(given):
            continue
        if given.endswith(".rrpc"):
            files.add_module(_load(given, options.include), given)
        else:
            files.add_service(find_service(given)[1], given)
    return files.package() if output.is_folder else {"": files.single()}


def _idl_texts(options: argparse.Namespace, output: Output) -> dict[str, str]:
    from rrpc.schema import module_of

    if output.is_folder:
        raise BadInput("--idl writes one file: -o FILE.rrpc")
    services: list[Any] = []
    for given in options.inputs:
        if given.endswith(".rrpc"):
            raise BadInput(f"{given}: --idl is for Python services and servers; see rrpc-gen format --help")
        services += _services_of(given, options) if _is_address(given) else [find_service(given)[1]]
    return {"": idl.print_module(module_of(services))}


def _load(path: str, include: Sequence[Path]) -> Module:
    try:
        return idl.load(path, include)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None


def _check(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="rrpc-gen check",
        description="Compare two versions of an interface; exit code 1 if programs of one can't talk to the other's. "
        "Where one of them is a Python service, that service alone is compared; of a server, those that the other "
        "one has.",
    )
    parser.add_argument(
        "old", metavar="OLD", help="a .rrpc file, module:Service of a Python service, or a server's address"
    )
    parser.add_argument("new", metavar="NEW", help="the same")
    _add_include(parser)
    _add_server_flags(parser)
    options = parser.parse_args(arguments)
    changes = _changes((options.old, options.new), options)
    for change in sorted(changes, key=lambda change: not change.breaking):
        at = change.position
        where = f"{at.file}:{at.line}:{at.column}: " if at is not None else ""
        print(for_terminal(f"{where}{'breaking' if change.breaking else 'note'}: {change}"))
    return 1 if any(change.breaking for change in changes) else 0


def _changes(versions: tuple[str, str], options: argparse.Namespace) -> list[Change]:
    from rrpc.schema.compatibility import compare, compare_services

    old, new = versions
    if all(given.endswith(".rrpc") and not _is_address(given) for given in versions):
        return compare(_load(old, options.include), _load(new, options.include))
    services = {given: _services_in(given, options) for given in versions}
    # Of all that a file or a server has, what the other one is about.
    about = min(versions, key=lambda given: (_is_address(given), given.endswith(".rrpc")))
    changes: list[Change] = []
    for name in services[about]:
        for given, there in services.items():
            if name not in there:
                raise BadInput(f"{given} has no service {name}; it has {', '.join(there) or 'none'}")
        changes += compare_services(services[old][name], services[new][name])
    return changes


def _services_in(given: str, options: argparse.Namespace) -> Mapping[str, Service]:
    from rrpc.schema import service_of

    if _is_address(given):
        found = _services_of(given, options)
    elif given.endswith(".rrpc"):
        return _load(given, options.include).services
    else:
        found = [service_of(find_service(given)[1])]
    return {service.name: service for service in found}


def _format(arguments: Sequence[str]) -> int:
    parser = Parser(prog="rrpc-gen format", description="Write .rrpc files in the usual form.")
    parser.add_argument("files", nargs="+", metavar="FILE.rrpc")
    _add_include(parser)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit code 1 if a file isn't in that form"
    )
    options = parser.parse_args(arguments)
    code = 0
    for path in options.files:
        output, texts = Output(path), {"": idl.print_module(_load(path, options.include))}
        _refuse_comments(path)
        code = max(code, output.check(texts) if options.check else output.write(texts))
    return code


def _refuse_comments(path: str) -> None:
    """The schema doesn't have them, and they're nobody's to throw away."""
    text = Path(path).read_text(encoding="utf-8")
    for found in _COMMENT_OR_TEXT.finditer(text):
        if found[0][0] == "/" and not found[0].startswith("///"):
            line = text.count("\n", 0, found.start()) + 1
            raise BadInput(
                f"{path}:{line}: this comment would be lost: make it documentation (///), or remove it"
            )


if __name__ == "__main__":
    sys.exit(main())
