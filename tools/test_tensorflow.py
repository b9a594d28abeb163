"""Runs the tests of TensorFlow and Keras in an environment with another version of TensorFlow.

The environment is made once; the wheel is installed anew every time. Only what any version must do is run:
the operations, tapes, optimizers, and ``fit`` on Keras 3 and ``tf_keras``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = [
    "tests/tensorflow/test_functions.py",
    "tests/tensorflow/test_reducing.py",
    "tests/tensorflow/test_tapes.py",
    "tests/tensorflow/test_optimizers.py",
    "tests/tensorflow/test_variables.py",
    "tests/tensorflow/test_xla.py",
    "tests/tensorflow/test_xla_errors.py",
    "tests/tensorflow/test_xla_training.py",
    "tests/keras/test_fit.py",
    "tests/keras/test_optimizer.py",
]
NEEDED = ["pytest>=8", "pytest-timeout>=2.3", "hypothesis>=6.100"]


def main() -> int:
    """Make the environment, install, test."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", required=True, help="of tensorflow-cpu")
    parser.add_argument("--environment", type=Path, required=True)
    parser.add_argument("--wheels", type=Path, required=True, help="the folder with the wheel")
    options = parser.parse_args()
    python = options.environment / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", options.environment], check=True)
    minor = ".".join(options.version.split(".")[:2])
    _pip(python, f"tensorflow-cpu=={options.version}", *NEEDED)
    _pip(python, "--no-deps", f"tf_keras~={minor}.0")  # which would bring the other tensorflow, too
    wheel = max(options.wheels.glob("khorovod-*.whl"), key=lambda path: path.stat().st_mtime)
    _pip(python, "--force-reinstall", "--no-deps", str(wheel))
    _pip(python, "cloudpickle>=3.0", "msgspec>=0.18", "psutil>=5.9", "PyYAML>=6.0")
    choice = ["-k", "not torch and not np3", "-p", "no:cacheprovider"]
    return subprocess.run([python, "-m", "pytest", *choice, *TESTS], cwd=ROOT, check=False).returncode


def _pip(python: Path, *arguments: str) -> None:
    quiet = ["--quiet", "--disable-pip-version-check"]
    subprocess.run([python, "-m", "pip", "install", *quiet, *arguments], check=True)


if __name__ == "__main__":
    sys.exit(main())
