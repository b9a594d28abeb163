"""Runs every libFuzzer target for its share of some minutes; says how many inputs each has had.

What a target has learned stays in build/fuzz/corpus, what broke it in build/fuzz/found.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

BUILD = Path(__file__).resolve().parents[1] / "build" / "fuzz"
TARGETS = ("link", "coordinator", "decisions", "traces", "engine", "plane")


def run(target: str, seconds: int) -> bool:
    """Whether the target survived."""
    corpus, found = BUILD / "corpus" / target, BUILD / "found" / target
    corpus.mkdir(parents=True, exist_ok=True)
    found.mkdir(parents=True, exist_ok=True)
    command = [str(BUILD / f"fuzz_{target}"), str(corpus), f"-artifact_prefix={found}/", "-max_len=4096"]
    limits = [f"-max_total_time={seconds}", "-timeout=300", "-rss_limit_mb=2048", "-print_final_stats=1"]
    environment = {**os.environ, "KHOROVOD_FUZZ_SEEDS": str(corpus)}
    done = subprocess.run([*command, *limits], env=environment, capture_output=True, text=True, check=False)
    executions = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    print(f"{target}: {executions[1] if executions else '?'} inputs in {seconds} s", flush=True)
    if done.returncode != 0:
        print(done.stderr[-6000:], flush=True)
    return done.returncode == 0


def main() -> None:
    """Fuzzes one target after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="for all targets together")
    parser.add_argument("targets", nargs="*", default=TARGETS)
    options = parser.parse_args()
    os.nice(19)
    seconds = max(1, round(60 * options.minutes / len(options.targets)))
    results = [run(target, seconds) for target in options.targets]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
