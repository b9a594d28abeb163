"""Khorovod: distributed training with five changed lines. Importing this loads no framework."""

from __future__ import annotations

__all__ = ["__version__"]


def __getattr__(name: str) -> str:
    # Looking the version up costs more than everything else that `import horovod` does.
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("khorovod")
        except PackageNotFoundError:  # a source tree that was never installed
            return "0.0.0"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
