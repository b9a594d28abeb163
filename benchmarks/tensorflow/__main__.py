"""``python -m benchmarks.tensorflow``."""

from __future__ import annotations

import sys

from benchmarks.tensorflow.cli import main

if __name__ == "__main__":
    sys.exit(main())
