"""Run clang-tidy over the C++ sources, a few at a time, skipping what has passed before unchanged.

Those of a layer are compiled eight at a time, as most of the time goes into reading the standard library. A pass is
remembered under build/tidy/passed by the content of the sources, of every header of ours that they include, and of
.clang-tidy.
"""

import argparse
import hashlib
import json
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "tidy"
CLANG_TIDY = Path(sys.executable).with_name("clang-tidy")
# The compile commands are GCC's, with what clang doesn't know.
UNKNOWN_TO_CLANG = ["--extra-arg=-Wno-unknown-warning-option", "--removed-arg=-fno-tree-loop-vectorize"]
# The analyzer's default of 225,000 nodes a function takes half a minute for some sources. Its own shallow mode has
# 75,000, which are used here with calls followed as deep as by default.
ANALYZER_NODES = [
    f"--extra-arg={word}" for word in ("-Xclang", "-analyzer-config", "-Xclang", "max-nodes=75000")
]
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def files_of(source: Path, seen: set[Path]) -> set[Path]:
    """Returns the file and all of cpp/ that it includes, directly or not."""
    if source in seen or not source.is_file():
        return seen
    seen.add(source)
    for name in INCLUDE.findall(source.read_text()):
        files_of(ROOT / "cpp" / name, seen)
        files_of(source.parent / name, seen)
    return seen


def fingerprint(entry: dict[str, Any]) -> str:
    digest = hashlib.sha256((ROOT / ".clang-tidy").read_bytes())
    digest.update(" ".join(shlex.split(entry["command"])[1:]).encode())
    for path in sorted(entry["files"]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def tidy(entry: dict[str, Any]) -> str:
    """What clang-tidy found in one source; empty when nothing."""
    marker = BUILD / "passed" / fingerprint(entry)
    if marker.exists():
        return ""
    command = [
        str(CLANG_TIDY),
        "--quiet",
        "-p",
        str(BUILD),
        *UNKNOWN_TO_CLANG,
        *ANALYZER_NODES,
        entry["file"],
    ]
    if "/cpp/tests/" in entry["file"]:
        command.insert(1, "--checks=-clang-analyzer-*")  # GoogleTest's macros cost it a minute a file
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        marker.touch()
        return ""
    return done.stdout + (done.stderr if not done.stdout.strip() else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("files", nargs="*", help="only sources whose path contains one of these")
    args = parser.parse_args()
    (BUILD / "passed").mkdir(parents=True, exist_ok=True)
    entries = json.loads((BUILD / "compile_commands.json").read_text())
    for entry in entries:
        entry["files"] = files_of(Path(entry["file"]), set())
        entry["sources"] = [str(file) for file in entry["files"] if file.suffix == ".cc"]
    entries = [entry for entry in entries if any("/cpp/" in source for source in entry["sources"])]
    if args.files:
        entries = [
            entry
            for entry in entries
            if any(part in source for part in args.files for source in entry["sources"])
        ]
    entries.sort(key=lambda entry: len(entry["sources"]), reverse=True)  # the long ones don't come last
    with ThreadPoolExecutor(args.jobs) as pool:
        reports = [report for report in pool.map(tidy, entries) if report]
    print("\n".join(reports))
    sources = {source for entry in entries for source in entry["sources"]}
    print(f"clang-tidy: {len(sources)} sources, {len(reports)} reports with findings")
    return 1 if reports else 0


if __name__ == "__main__":
    sys.exit(main())
