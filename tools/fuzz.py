"""Runs the property tests on random examples until the time is up or one fails: `make fuzz ARGS="--minutes 5"`."""

import argparse
import os
import random
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOG = ROOT / "build" / "logs" / "fuzz.log"


def round_of(seed: int, times: int, timeout: float, more: list[str]) -> int | None:
    """Runs every property test once; returns the exit code, or None when the time was up before."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "3",
        "-m",
        "hypothesis",
        f"--hypothesis-seed={seed}",
    ]
    # A round is long: pytest's own limit is for usual tests.
    command += ["-p", "no:cacheprovider", "-o", "timeout=3600", "-o", "faulthandler_timeout=0", *more]
    environment = {**os.environ, "RRPC_FUZZ": str(times)}
    LOG.parent.mkdir(parents=True, exist_ok=True)
    with (
        LOG.open("wb") as log,
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log) as process,
    ):
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.terminate()
            return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long, in all (5)")
    parser.add_argument(
        "--times", type=int, default=10, help="how many times the usual number of examples (10)"
    )
    parser.add_argument("--seed", type=int, help="one round with this seed, as a failed run printed it")
    options, more = parser.parse_known_args()  # what else there is goes to pytest: -k name
    end = time.monotonic() + 60 * options.minutes
    rounds = 0
    while (left := end - time.monotonic()) > 0:
        seed = random.randrange(1 << 32) if options.seed is None else options.seed
        print(f"fuzz: round {rounds + 1}, seed {seed}", flush=True)
        code = round_of(seed, options.times, left if options.seed is None else 24 * 3600.0, more)
        if code is None:
            break
        if code != 0:
            print(LOG.read_text(errors="replace"))
            arguments = " ".join([f"--seed {seed} --times {options.times}", *more])
            print(f'fuzz: failed; once more with: make fuzz ARGS="{arguments}"')
            return code
        rounds += 1
        if options.seed is not None:
            break
    print(f"fuzz: {rounds} whole rounds, and nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
