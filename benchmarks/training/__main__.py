"""`python -m benchmarks.training`."""

from __future__ import annotations

import sys

from benchmarks.training.cli import main

if __name__ == "__main__":
    sys.exit(main())
