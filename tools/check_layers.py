"""Hold the imports of both languages to the order of the layers. The tables below are the rules.

usage: check_layers.py [ROOT]; one line per violation, exit code 1 when there is one.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

# C++: each folder of cpp/ and the folders it may include from, besides itself.
_CORE = ("base", "provider")
_PROTOCOL = (*_CORE, "endpoint", "rpc")
_PROVIDERS = ("provider/shm", "provider/tcp", "provider/verbs")
CPP_LAYERS: dict[str, tuple[str, ...]] = {
    "base": (),
    "provider": ("base",),
    "provider/sim": _CORE,
    "provider/shm": _CORE,
    "provider/tcp": _CORE,
    "provider/verbs": _CORE,
    "endpoint": _CORE,
    "rpc": (*_CORE, "endpoint"),
    "driver": (*_PROTOCOL, *_PROVIDERS),
    "bind": (*_PROTOCOL, *_PROVIDERS, "driver"),
    "tests": (*_PROTOCOL, *_PROVIDERS, "provider/sim", "driver"),
    "tests/plugin": (*_CORE, "provider/tcp"),
    "bench": (*_PROTOCOL, *_PROVIDERS, "driver"),
}
_NO_IO = r"sys/(socket|epoll|eventfd|timerfd|un|select|uio)\.h|(net)?inet/.*|netdb\.h|arpa/.*|poll\.h"
_NO_THREADS = r"thread|condition_variable|future|semaphore|barrier|latch|chrono|time\.h|ctime"
_PURE = ("endpoint", "rpc")
# (what, pattern, the only layers that may have it) and, for NOT_IN, the layers that may not.
CPP_HEADERS_ONLY_IN: list[tuple[str, str, tuple[str, ...]]] = [
    ("Python", r"Python\.h|pybind11/.*", ("bind",)),
    ("verbs", r"infiniband/.*|rdma/.*", ("provider/verbs",)),
]
CPP_HEADERS_NOT_IN = [("I/O", _NO_IO, _PURE), ("threads and clocks", _NO_THREADS, _PURE)]
CPP_WORDS_ONLY_IN: list[tuple[str, str, tuple[str, ...]]] = [
    ("verbs symbol", r"\b(?:ibv|rdma)_\w+", ("provider/verbs",))
]
CPP_WORDS_NOT_IN = [
    ("clock read", r"\b(?:now_ns|clock_gettime)\s*\(", _PURE),
    ("thread call", r"\bpthread_(?!atfork)\w+", _PURE),
]

# Python: each module of rrpc and the modules it may import, besides itself.
_VALUES = ("errors", "codec", "bulk")
_HANDLING = (*_VALUES, "service", "metadata", "context", "dispatch", "status")
_STREAMING = ("outgoing_streams", "stream_stubs")
_CALLING = (
    "options",
    "channel",
    "calls",
    "futures",
    "loops",
    "retry",
    "stubs",
    "base_client",
    "client",
    *_STREAMING,
)
_SHELLS = (
    *_HANDLING,
    "types",
    "health",
    "interceptors",
    "schema",
    "versions",
    *_CALLING,
    "observe",
    "streams",
    "tracing",
    "server",
)
PY_LAYERS: dict[str, tuple[str, ...]] = {
    "errors": (),
    "codec": ("errors", "bulk"),
    "bulk": ("errors",),
    "array_checks": ("context", "stubs"),
    "batching": ("errors", "bulk", "context"),
    "types": (),
    "service": (*_VALUES, "types"),
    "schema": (*_VALUES, "types", "service"),
    "options": ("errors",),
    "front": ("options",),
    "health": ("errors",),
    "interceptors": (*_VALUES, "peers"),
    "versions": (*_VALUES, "service", "schema"),
    "channel": (*_VALUES, "options", "service", "versions"),
    "calls": ("errors", "bulk", "channel", "context", "retry", "interceptors", "metadata", "options"),
    "futures": ("errors", "calls", "channel", "interceptors", "loops", "metadata"),
    "loops": (),
    "retry": ("errors", "calls", "channel", "futures", "interceptors"),
    "stubs": (
        "loops",
        "errors",
        "bulk",
        "calls",
        "channel",
        "client",
        "context",
        "futures",
        "interceptors",
        "metadata",
        "options",
        "service",
    ),
    "outgoing_streams": (
        *(
            "errors",
            "codec",
            "calls",
            "channel",
            "client",
            "interceptors",
            "loops",
            "metadata",
            "options",
            "retry",
        ),
        "service",
        "streams",
    ),
    "stream_stubs": ("errors", "channel", "loops", "metadata", "outgoing_streams", "streams", "stubs"),
    "base_client": ("calls", "channel", "interceptors", "metadata", "options", "peers", "retry", "stubs"),
    "client": (
        *_VALUES,
        "base_client",
        "calls",
        "channel",
        "futures",
        "interceptors",
        "loops",
        "metadata",
        "options",
        "retry",
        "service",
        "stubs",
    ),
    "peers": (),
    "observe": ("peers",),
    "metadata": ("errors",),
    "context": ("metadata", "peers"),
    "tracing": ("errors", "context", "metadata"),
    "dispatch": ("errors", "service", "tracing"),
    "status": ("errors", "codec", "context", "metadata", "service"),
    "workers": (),
    "worker": ("observe", "context", "dispatch", "metadata", "status", "streams"),
    "served": ("errors", "metadata", "context", "dispatch", "interceptors", "streams"),
    "streams": (*_HANDLING, "loops", "observe", "peers"),
    "server": (
        *(
            "dispatch",
            "errors",
            "health",
            "interceptors",
            "observe",
            "options",
            "served",
            "service",
            "streams",
            "versions",
            "worker",
            "workers",
        ),
    ),
    "aio": (*_SHELLS, "peers"),
    "__init__": (*_SHELLS, "aio", "std", "array_checks", "batching"),
    "std": (*_SHELLS, "__init__"),
    "idl": _SHELLS,
    "cli": (*_SHELLS, "front", "aio", "idl", "std", "__init__"),
}
PY_MAY_IMPORT_CORE = {
    "errors",
    "codec",
    "bulk",
    "observe",
    "options",
    "array_checks",
    "front",
    "calls",
    "channel",
    "futures",
    "server",
    "streams",
    "worker",
    "aio",
    "__init__",
}
GENERATED_MARK = "generated by rrpc-gen"

_COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)


def _blank(match: re.Match[str]) -> str:
    return "\n" * match.group().count("\n") or " "


def cpp_layer(path: Path, cpp: Path) -> str:
    return path.relative_to(cpp).parent.as_posix()


def _header_rules(layer: str, header: str) -> Iterator[str]:
    for what, pattern, layers in CPP_HEADERS_ONLY_IN:
        if re.fullmatch(pattern, header) and layer not in layers:
            yield f"{what} header <{header}> belongs in {', '.join(layers)} alone"
    for what, pattern, layers in CPP_HEADERS_NOT_IN:
        if re.fullmatch(pattern, header) and layer in layers:
            yield f"{layer} has no {what} of its own, yet includes <{header}>"


def _word_rules(layer: str, code: str) -> Iterator[tuple[int, str]]:
    rules = [(what, pattern, layer in layers) for what, pattern, layers in CPP_WORDS_ONLY_IN]
    rules += [(what, pattern, layer not in layers) for what, pattern, layers in CPP_WORDS_NOT_IN]
    for what, pattern, allowed in rules:
        for match in [] if allowed else re.finditer(pattern, code):
            yield (
                code.count("\n", 0, match.start()) + 1,
                f"{what} {match.group().rstrip('( ')} has no place in {layer}",
            )


def check_cpp_file(path: Path, cpp: Path) -> Iterator[tuple[int, str]]:
    layer = cpp_layer(path, cpp)
    if layer not in CPP_LAYERS:
        yield 1, f"cpp/{layer} is no layer: tools/check_layers.py doesn't know it"
        return
    text = path.read_text()
    for match in _INCLUDE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        for problem in _header_rules(layer, match.group(2)):
            yield line, problem
        if match.group(1) == '"':
            target = match.group(2)
            seen = Path(target).parent.as_posix()
            beside = (path.parent / target).resolve()
            if not (cpp / target).is_file() and beside.is_relative_to(cpp.resolve()) and beside.is_file():
                seen = cpp_layer(beside, cpp.resolve())
            if seen in CPP_LAYERS and seen != layer and seen not in CPP_LAYERS[layer]:
                yield line, f"{layer} may not see {seen} ({target})"
    yield from _word_rules(layer, _COMMENT_OR_STRING.sub(_blank, text))


def imported_modules(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of each import; `package` resolves relative ones."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def check_python_file(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    inside = path.relative_to(root / "rrpc")
    unit = inside.parts[0].removesuffix(".py")
    if unit not in PY_LAYERS:
        yield 1, f"rrpc/{unit} is no layer: tools/check_layers.py doesn't know it"
        return
    modules = {p.name.removesuffix(".py") for p in (root / "rrpc").iterdir()} | {"_core"}
    for line, name in imported_modules(ast.parse(path.read_text()), ("rrpc", *inside.parts[:-1])):
        first, _, rest = name.partition(".")
        if first != "rrpc":
            continue
        target = rest.split(".")[0]
        target = target if target in modules else "__init__"  # `from rrpc import Client`
        if target == "_core":
            if unit not in PY_MAY_IMPORT_CORE:
                yield line, f"rrpc.{unit} may not import the core"
        elif target != unit and target not in PY_LAYERS[unit]:
            yield (
                line,
                f"rrpc.{unit} may not import {'rrpc itself' if target == '__init__' else f'rrpc.{target}'}",
            )


def check_generated_file(path: Path) -> Iterator[tuple[int, str]]:
    """Generated clients import only what is public: no name of rrpc that begins with an underscore."""
    text = path.read_text()
    if GENERATED_MARK not in text[:400].lower():
        return
    for line, name in imported_modules(ast.parse(text), ()):
        parts = name.split(".")
        if parts[0] == "rrpc" and any(part.startswith("_") for part in parts[1:]):
            yield line, f"generated code imports {name}, which isn't public"


def violations(root: Path) -> Iterator[str]:
    cpp = root / "cpp"
    for path in sorted([*cpp.rglob("*.h"), *cpp.rglob("*.cc")]):
        for line, problem in check_cpp_file(path, cpp):
            yield f"{path.relative_to(root)}:{line}: {problem}"
    for path in sorted((root / "rrpc").rglob("*.py")):
        for line, problem in check_python_file(path, root):
            yield f"{path.relative_to(root)}:{line}: {problem}"
    for folder in ("examples", "tests", "bench"):
        for path in sorted((root / folder).rglob("*.py")):
            for line, problem in check_generated_file(path):
                yield f"{path.relative_to(root)}:{line}: {problem}"


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    found = list(violations(root))
    print("\n".join(found) if found else "check_layers: in order")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
