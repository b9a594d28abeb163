"""Which frameworks are installed, and for which this version has a frontend. Imports none of them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["FRAMEWORKS", "Found", "Framework", "installed_version", "look_for", "route_by"]


@dataclass(frozen=True)
class Framework:
    """A framework, and under which names it is distributed."""

    name: str
    distributions: tuple[str, ...]
    frontend: str
    route: str = ""
    """A program that prints how operations get from it to the engine, where there is more than one way."""


@dataclass(frozen=True)
class Found:
    """What is there of a framework."""

    framework: Framework
    distribution: str
    version: str | None
    has_frontend: bool
    route: str = ""


_ROUTE_OF_TENSORFLOW = """
from horovod.tensorflow import _kernels, _xla
why = _kernels.why_fallback
route = f"operations in Python, slower: {why}" if why else "native kernels"
print(route if _xla.why_not() else f"{route}, jit_compile=True")
"""
_ROUTE_SECONDS = 120.0

FRAMEWORKS = (
    Framework("NumPy", ("numpy",), "horovod.numpy"),
    Framework(
        "TensorFlow",
        ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly"),
        "horovod.tensorflow",
        _ROUTE_OF_TENSORFLOW,
    ),
    Framework("PyTorch", ("torch",), "horovod.torch"),
    Framework("Keras", ("keras",), "horovod.keras"),
    Framework("JAX", ("jax",), "horovod.jax"),
    Framework("MXNet", ("mxnet",), "horovod.mxnet"),
)


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution; None if it is not there."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _has_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def route_by(program: str) -> str:
    """What a program says that imports a framework: in a process of its own, as that takes a while."""
    command = [sys.executable, "-c", program]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_ROUTE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"was not imported in {_ROUTE_SECONDS:g} s"
    said = (ended.stdout if ended.returncode == 0 else ended.stderr).strip().splitlines()
    last = said[-1] if said else f"exit code {ended.returncode}"
    return last if ended.returncode == 0 else f"cannot be imported: {last}"


def look_for(
    framework: Framework,
    version_of: Callable[[str], str | None] = installed_version,
    has_module: Callable[[str], bool] = _has_module,
    route_of: Callable[[str], str] = route_by,
) -> Found:
    """What is there of ``framework``."""
    has_frontend = has_module(framework.frontend)
    for distribution in framework.distributions:
        if (version := version_of(distribution)) is not None:
            route = route_of(framework.route) if framework.route and has_frontend else ""
            return Found(framework, distribution, version, has_frontend, route)
    return Found(framework, framework.distributions[0], None, has_frontend)
