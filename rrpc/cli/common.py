"""Shared parts of the commands: arguments, ending, finding a service, and error messages of one line."""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import rrpc
from rrpc._interface import Interface
from rrpc._interface.decorators import interface_of
from rrpc._prose import for_terminal


class BadInput(Exception):
    """Input from the user that can't be used; the message is the line to show."""


def tool_version() -> str:
    """The version for the headers of generated files: of the installed package, or of this checkout."""
    if not rrpc.__version__.startswith("0+"):
        return rrpc.__version__
    project = Path(rrpc.__file__).resolve().parent.parent / "pyproject.toml"
    found = (
        re.search(r'^version = "(.+?)"', project.read_text(encoding="utf-8"), re.M)
        if project.is_file()
        else None
    )
    return found[1] if found else rrpc.__version__


class _ShowVersion(argparse.Action):
    """``--version``. Only this looks for the version: finding it takes a while."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help="show the version, and end")

    def __call__(self, parser: argparse.ArgumentParser, *parsed: Any) -> None:
        print(f"{parser.prog.partition(' ')[0]} {tool_version()}")
        parser.exit()


class _PrintCompletion(argparse.Action):
    """``--print-completion``. Only this imports shtab."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(
            option_strings,
            argparse.SUPPRESS,
            choices=("bash", "zsh", "tcsh"),
            help="print a script that completes this command in that shell, and end",
        )

    def __call__(self, parser: argparse.ArgumentParser, namespace: object, shell: Any, *rest: Any) -> None:
        try:
            import shtab
        except ModuleNotFoundError:
            parser.error("--print-completion needs shtab: pip install 'rrpc-rdma[completion]'")
        print(shtab.complete(parser, shell))
        parser.exit()


def takes_files(action: argparse.Action) -> None:
    """Has a shell complete the option's or argument's values as files."""
    action.complete = _FILES  # type: ignore[attr-defined]


_FILES = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}
"""``shtab.FILE``, which isn't always installed."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, with exit code 2; has ``--version`` and ``--print-completion``."""

    with_lines = argparse.RawDescriptionHelpFormatter
    """For an epilog that is laid out already."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_argument("--version", action=_ShowVersion)
        if " " not in self.prog:
            self.add_argument("--print-completion", action=_PrintCompletion)

    def error(self, message: str) -> NoReturn:
        """Ends the process with exit code 2 and one line that says what is wrong."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def command(program: str) -> Callable[[Callable[[Sequence[str] | None], int]], Callable[..., int]]:
    """Decorates a command, so that it ends quietly.

    It does so when the reader of its output has gone, as `head` does after some lines, and with one line when it is
    interrupted.
    """

    def decorate(run: Callable[[Sequence[str] | None], int]) -> Callable[..., int]:
        @functools.wraps(run)
        def main(arguments: Sequence[str] | None = None) -> int:
            try:
                try:
                    return run(arguments)
                finally:
                    if sys.stdout is not None:
                        sys.stdout.flush()
            except KeyboardInterrupt:
                print(f"{program}: interrupted", file=sys.stderr, flush=True)
                return 128 + signal.SIGINT
            except BrokenPipeError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed at exit
                return 128 + signal.SIGPIPE

        return main

    return decorate


def debugging() -> bool:
    """Returns whether ``RRPC_DEBUG`` asks for tracebacks."""
    return os.environ.get("RRPC_DEBUG", "") not in ("", "0")


def problem(program: str, error: BaseException) -> int:
    """Report on stderr; the exit code for bad input."""
    if debugging():
        traceback.print_exception(type(error), error, error.__traceback__)
    print(f"{program}: {one_line(str(error))}", file=sys.stderr, flush=True)
    return 2


def one_line(text: str) -> str:
    """The text without line breaks, for a terminal."""
    return for_terminal(" ".join(text.split()))


def find_service(target: str) -> tuple[type, Interface]:
    """The class and the interface behind ``module:Service``. Raises BadInput."""
    found = find(target, "module:Service", _services_in)
    interface = interface_of(found) if isinstance(found, type) else None
    if interface is None:
        raise BadInput(f"{target} is no service: decorate the class with @rrpc.service")
    return found, interface


def find(target: str, form: str, there_is: Callable[[Any], str] = lambda module: "") -> Any:
    """Imports the module and returns the object that ``target``, ``module:name``, names. Raises BadInput.

    Errors show ``form`` as the way to write a target, and end with the text that ``there_is(found)`` returns.
    """
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        raise BadInput(f"{target!r} isn't of the form {form}")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    found: Any = _import(module_name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise BadInput(f"module {module_name} has no {attribute}{there_is(found)}")
        found = getattr(found, part)
    return found


def _services_in(module: Any) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, type) and interface_of(value)]
    return f"; it has {', '.join(sorted(names))}" if names else ""


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise BadInput(
                f"there is no module {name} (looked in the current directory and sys.path)"
            ) from None
        raise BadInput(f"importing {name}: {user_line(error)}") from error
    except Exception as error:
        raise BadInput(f"importing {name}: {user_line(error)}") from error
    except SystemExit as error:
        raise BadInput(f"importing {name}: it ended the process with {error.code!r}") from error


def user_line(error: BaseException) -> str:
    """Type, message, and the last line of the user's own code on the way."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    ours = (os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "<frozen", importlib.__file__)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(ours)]
    if not frames:
        return text
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno})"
