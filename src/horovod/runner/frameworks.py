"""Which frameworks are installed, and for which this version has a frontend. Imports none of them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["FRAMEWORKS", "Found", "Framework", "installed_version", "look_for"]


@dataclass(frozen=True)
class Framework:
    """A framework, and under which names it is distributed."""

    name: str
    distributions: tuple[str, ...]
    frontend: str


@dataclass(frozen=True)
class Found:
    """What is there of a framework."""

    framework: Framework
    distribution: str
    version: str | None
    has_frontend: bool


FRAMEWORKS = (
    Framework("NumPy", ("numpy",), "horovod.numpy"),
    Framework(
        "TensorFlow", ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly"), "horovod.tensorflow"
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


def look_for(
    framework: Framework,
    version_of: Callable[[str], str | None] = installed_version,
    has_module: Callable[[str], bool] = _has_module,
) -> Found:
    """What is there of ``framework``."""
    has_frontend = has_module(framework.frontend)
    for distribution in framework.distributions:
        if (version := version_of(distribution)) is not None:
            return Found(framework, distribution, version, has_frontend)
    return Found(framework, framework.distributions[0], None, has_frontend)
