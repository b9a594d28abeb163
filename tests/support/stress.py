"""Runs the multi-process tests again and again while every core is busy: flaky is broken.

``make test-stress ROUNDS=20`` or ``python tests/support/stress.py --rounds 20 tests/faults``. Stops at the
first failure, with that round's output.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
MULTI_PROCESS = (
    "tests/conformance",
    "tests/numpy",
    "tests/torch",
    "tests/tensorflow",
    "tests/keras",
    "tests/core",
    "tests/faults",
    "tests/launchers",
    "tests/runner",
)
SPIN = "while True: pass"
# A hog that outlives this process, however it ends, would disturb everything after it.
HOG = f"import ctypes; ctypes.CDLL(None).prctl(1, 9)\n{SPIN}"


def main() -> int:
    """Exit code 0 if every round passed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--at-once", type=int, default=1, help="rounds that run beside each other: still more load"
    )
    parser.add_argument("tests", nargs="*", default=list(MULTI_PROCESS))
    args = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    hogs = [subprocess.Popen([sys.executable, "-c", HOG]) for _ in range(cores)]
    rounds = ThreadPoolExecutor(args.at_once)
    try:
        running = [rounds.submit(one_round, number, args.tests) for number in range(1, args.rounds + 1)]
        for done in as_completed(running):
            if not done.result():
                return 1  # once the rounds that are under way have ended
    finally:
        rounds.shutdown(wait=False, cancel_futures=True)
        for hog in hogs:
            hog.kill()
            hog.wait()
    return 0


def one_round(number: int, tests: list[str]) -> bool:
    """Run all tests once, print how it went, with the whole output of a failure; True if all passed."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow", *tests],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "no output"
    print(f"round {number}: {last} ({time.monotonic() - began:.0f} s)", flush=True)
    if done.returncode != 0:
        print(done.stdout, flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
