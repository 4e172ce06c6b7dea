"""Two versions of a service and their generated clients, and services made for a test."""

import sys
import types
from typing import Any

import rrpc
from rrpc._interface.decorators import interface_of
from rrpc.idl import Unit, emit

OLD = """
import enum
from dataclasses import dataclass, field
import numpy as np
from numpy.typing import NDArray
import rrpc

class Kind(enum.IntEnum):
    A = 1
    B = 2

@dataclass
class Row:
    id: int
    note: str = "none"

@rrpc.service(name="lab.Rows")
class Rows:
    @rrpc.method
    def put(self, row: Row, *, tag: str = "t") -> list[Row]:
        return [row, Row(len(tag), tag)]

    @rrpc.method
    def find(self, prefix: str) -> str:
        return prefix

    @rrpc.method
    def kind(self, kind: Kind) -> Kind:
        return kind

    @rrpc.method
    def double(self, a: NDArray[np.float32]) -> NDArray[np.float32]:
        return a * 2
"""
# Two fields more and one less, parameters before and after old ones, a method, a member, an argument that takes more.
NEW = (
    OLD.replace("    B = 2", "    B = 2\n    C = 3")
    .replace('note: str = "none"', "weight: float = 1.5\n    tags: list[str] = field(default_factory=list)")
    .replace(
        """put(self, row: Row, *, tag: str = "t") -> list[Row]:
        return [row, Row(len(tag), tag)]""",
        """put(self, row: Row, copies: int = 1, *, first: bool = True, tag: str = "t") -> list[Row]:
        return [row, Row(len(tag), copies, [tag, str(first)])]""",
    )
    .replace(
        """find(self, prefix: str) -> str:
        return prefix""",
        """find(self, prefix: str | int, limit: int = 7) -> str:
        return f"{prefix} {limit}"

    @rrpc.method
    def count(self) -> int:
        return 42""",
    )
    .replace("a: NDArray[np.float32]) ->", "a: NDArray[np.float32], by: float = 2.0) ->")
    .replace("a * 2", "a * np.float32(by)")
)
OTHER = OLD.replace("find(self, prefix: str)", "find(self, prefix: int)").replace("id: int", "id: str")


def make_module(name: str, text: str) -> Any:
    module = types.ModuleType(name)
    sys.modules[name] = module  # where dataclasses and annotations look names up
    exec(compile(text, f"{name}.py", "exec"), module.__dict__)
    return module


def generate(kind: Any) -> Any:
    """A service's generated client, as a module."""
    interface = interface_of(kind)
    assert interface is not None
    return make_module(
        f"client_of_{kind.__module__}_{kind.__name__}", emit(Unit("a test", [interface]), "0.1.0")
    )


CLIENTS = {
    name: generate(make_module(f"rows_{name}", text).Rows) for name, text in {"old": OLD, "new": NEW}.items()
}
PRINTS = {name: module.RowsClient.rpc_fingerprints["lab.Rows"] for name, module in CLIENTS.items()}


def connect_as(version: str, address: str, **options: Any) -> Any:
    return CLIENTS[version].RowsClient(address, timeout=20.0, **options)


def named(name: str, answer: str) -> Any:
    """A service of one method that says which it is."""

    def who(self: Any) -> str:
        return answer

    return rrpc.service(name=name)(type(name, (), {"who": rrpc.method(who)}))


def client_of(name: str) -> Any:
    return getattr(generate(named(name, "")), f"{name}Client")
