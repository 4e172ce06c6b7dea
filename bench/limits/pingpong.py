"""The least that a round trip between two processes can take: a small C++ program, built when needed."""

import shutil
import subprocess
from pathlib import Path

from bench.limits.base import Results
from bench.settings import ROOT

SOURCE = Path(__file__).with_suffix(".cc")
PROGRAM = ROOT / "build" / "bench" / "pingpong"


def missing() -> str:
    return "" if shutil.which("g++") else "no g++ to build it with"


def program() -> Path:
    if not PROGRAM.exists() or PROGRAM.stat().st_mtime < SOURCE.stat().st_mtime:
        PROGRAM.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["g++", "-O2", "-std=c++20", str(SOURCE), "-o", str(PROGRAM)], check=True)
    return PROGRAM


def run(kind: str, seconds: float) -> Results:
    done = subprocess.run([program(), kind, str(seconds)], check=True, capture_output=True, text=True)
    p50_ns, p99_ns = map(float, done.stdout.split())
    return [{"case": "32 B", "metrics": {"p50_us": p50_ns / 1e3, "p99_us": p99_ns / 1e3}}]


def spin(seconds: float, sizes: list[float]) -> Results:
    return run("spin", seconds)


def wake(seconds: float, sizes: list[float]) -> Results:
    return run("wake", seconds)
