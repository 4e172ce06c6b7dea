"""How long, how often and how large: one value object that every part of the benchmark reads."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20
TURNS = [(1, 1), (1, 400), (4, 1), (4, 250)]  # processes, and how many connections each of them uses in turn


def turns_case(processes: int, each: int) -> str:
    """How the benchmark calls it: "4 processes, 250 connections each"."""
    return f"{processes} process{'es' * (processes > 1)}, {each} connection{'s' * (each > 1)} each"


@dataclass(frozen=True)
class Settings:
    """The full run's figures; ``quick`` and the command line narrow them."""

    rounds: int = 5
    array_rounds: int = 3
    connection_rounds: int = 1
    seconds: float = 0.4
    small_bytes: int = 32
    window: int = 64
    sizes_mib: tuple[float, ...] = (1, 16, 256)
    lent_mib: float = 1024
    connections: tuple[int, ...] = (1, 10, 100, 1000)
    client_processes: int = 2
    rest_seconds: float = 1.0
    child_timeout: float = 120.0

    @staticmethod
    def quick() -> "Settings":
        return Settings(
            rounds=1, array_rounds=1, seconds=0.15, sizes_mib=(1, 16), lent_mib=64, connections=(1, 100)
        )
