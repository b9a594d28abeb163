"""Khorovod's benchmarks: whole `hvd.*` calls beside Gloo, MPI and memcpy, measured in the same rounds.

`python -m benchmarks` from the repository root runs them; README.md here says what a row means.
Nothing in this package asserts a speed: it measures, compares with the declared goals, and says so.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
