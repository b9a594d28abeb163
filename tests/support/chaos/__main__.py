"""Plays random scripts for some minutes: ``make test-chaos MINUTES=10``, and again with ``SEED=...``.

Every script follows from the seed and its number. One that fails is saved with all that came of it, and can
be played again by itself: ``python -m tests.support.chaos --script FILE``.
"""

from __future__ import annotations

import argparse
import random
import secrets
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.support.chaos.judge import judge
from tests.support.chaos.nursery import Nursery
from tests.support.chaos.restarts import VICTIMS, kill_once
from tests.support.chaos.script import Script, random_script
from tests.support.chaos.stage import play


def main() -> int:
    """Exit code 0 if every story was a good one."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", default="", help="of an earlier run; a new one if not given")
    parser.add_argument("--first", type=int, default=0, help="the number of the first script")
    parser.add_argument("--restarts", type=int, help="instead, kill and restart one job this many times")
    parser.add_argument("--script", type=Path, help="play this file, once")
    parser.add_argument("--out", type=Path, default=Path("build/chaos"), help="where failures are saved")
    options = parser.parse_args()
    with Nursery() as nursery, tempfile.TemporaryDirectory(prefix="khorovod-chaos-") as directory:
        if options.script:
            complaints = perform(nursery, Script.load(options.script), Path(directory, "0"), options.out)
            return _say_complaints(str(options.script), complaints)
        if options.restarts:
            return restart_many(nursery, options, Path(directory))
        return perform_many(nursery, options, Path(directory))


def perform_many(nursery: Nursery, options: argparse.Namespace, directory: Path) -> int:
    """Random scripts until the time is up; stops for none of them."""
    seed = options.seed or secrets.token_hex(4)
    print(f"chaos: SEED={seed}, {options.minutes:g} minutes", flush=True)
    counts: Counter[str] = Counter()
    failed = 0
    number = options.first
    end = time.monotonic() + options.minutes * 60
    while time.monotonic() < end:
        script = random_script(f"{seed}/{number}")
        complaints = perform(nursery, script, directory / str(number), options.out)
        if complaints:
            failed += 1
            _say_complaints(f"script {number} of SEED={seed}", complaints)
        counts.update((script.plane, f"{script.size} ranks", f"launcher {script.launcher}"))
        counts.update(f"fault: {fault.kind}" for fault in script.faults)
        number += 1
    print(f"chaos: {number - options.first} scripts, {failed} failed (SEED={seed})")
    for name, count in sorted(counts.items()):
        print(f"  {count:6} {name}")
    return 1 if failed else 0


def restart_many(nursery: Nursery, options: argparse.Namespace, directory: Path) -> int:
    """Kills one job at random moments, and looks for what it leaves."""
    seed = options.seed or secrets.token_hex(4)
    failed = 0
    for number in range(options.first, options.first + options.restarts):
        rng = random.Random(f"{seed}/{number}")
        place = directory / str(number)
        complaints = kill_once(nursery, rng.choice(VICTIMS), rng, place, f"restarts-{seed}")
        failed += _say_complaints(f"restart {number} of SEED={seed}", complaints)
        shutil.rmtree(place)
    print(f"chaos: {options.restarts} restarts, {failed} failed (SEED={seed})")
    return 1 if failed else 0


def perform(nursery: Nursery, script: Script, directory: Path, out: Path) -> list[str]:
    """Plays and judges one script; a failure is kept below ``out``."""
    complaints = judge(script, play(nursery, script, directory))
    if complaints:
        out.mkdir(parents=True, exist_ok=True)
        kept = Path(tempfile.mkdtemp(prefix="failed-", dir=out))
        shutil.copytree(directory, kept, dirs_exist_ok=True)
        (kept / "complaints").write_text("\n".join(complaints) + "\n")
        complaints = [*complaints, f"kept in {kept}"]
    shutil.rmtree(directory)
    return complaints


def _say_complaints(what: str, complaints: list[str]) -> int:
    for complaint in complaints:
        print(f"{what}: {complaint}", flush=True)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
