"""What importing costs: no framework, no NumPy, nothing that a script did not ask for."""

from __future__ import annotations

import subprocess
import sys

import pytest

HINT = "ImportError: horovod.numpy needs NumPy; install it with: pip install numpy"
HEAVY = ("numpy", "torch", "tensorflow", "keras", "jax", "mpi4py", "cloudpickle", "psutil", "yaml", "msgspec")


def run(*args: str) -> subprocess.CompletedProcess[str]:
    """Runs a fresh interpreter."""
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, check=False)


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter has after ``statement``."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = run("-W", "error", "-c", code)
    assert (done.returncode, done.stderr) == (0, "")
    return set(done.stdout.split())


def test_import_horovod_loads_almost_nothing() -> None:
    modules = loaded_by("import horovod")
    assert modules.isdisjoint(HEAVY)
    assert "horovod._native" not in modules


@pytest.mark.parametrize("module", ["horovod._core.basics", "horovod.exceptions", "horovod._config"])
def test_the_core_loads_no_framework_and_not_numpy(module: str) -> None:
    assert loaded_by(f"import {module}").isdisjoint(
        {"numpy", "torch", "tensorflow", "keras", "jax", "mpi4py"}
    )


def test_the_launcher_loads_no_native_code() -> None:
    modules = loaded_by("import horovod.runner.cli")
    assert modules.isdisjoint({"horovod._native", "numpy", "torch"})


def test_a_world_of_one_needs_no_rendezvous() -> None:
    modules = loaded_by("import horovod.numpy as hvd; hvd.init(); hvd.shutdown()")
    assert modules.isdisjoint({"msgspec", "horovod.rendezvous.meeting", "torch"})


def test_the_numpy_frontend_loads_no_other_framework() -> None:
    assert loaded_by("import horovod.numpy").isdisjoint({"torch", "tensorflow", "keras", "jax", "mpi4py"})


def test_without_numpy_the_frontend_says_what_to_install() -> None:
    code = "import sys\nsys.modules['numpy'] = None\nimport horovod.numpy"
    done = run("-c", code)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith(HINT)


@pytest.mark.parametrize(
    ("module", "missing", "hint"),
    [
        (
            "horovod.tensorflow",
            "tensorflow",
            "horovod.tensorflow needs TensorFlow 2.16 or newer; install it with: pip",
        ),
        (
            "horovod.tensorflow.keras",
            "tensorflow",
            "horovod.tensorflow needs TensorFlow 2.16 or newer; install it",
        ),
        (
            "horovod.keras",
            "keras",
            "horovod.keras needs Keras 3 and a framework for it; install them with: pip",
        ),
    ],
)
def test_without_its_framework_a_frontend_says_what_to_install(module: str, missing: str, hint: str) -> None:
    done = run("-c", f"import sys\nsys.modules[{missing!r}] = None\nimport {module}")
    assert done.returncode == 1
    assert f"ImportError: {hint}" in done.stderr


def test_keras_on_what_is_not_supported() -> None:
    """Keras itself is not needed to tell."""
    code = "from horovod._keras.backends import backend_named\nbackend_named('jax')"
    done = run("-c", code)
    assert "NotImplementedError: Keras runs on jax here" in done.stderr
    assert "KERAS_BACKEND=tensorflow" in done.stderr
