"""What the fault tests share: how to start a job, and which data planes there are to hurt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
from jobs import Job, Start, job
from tests.support.chaos.nursery import Nursery

from horovod import _native


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a job that ends with the test: ``start(size, code, env, before)``."""
    with ExitStack() as stack:
        count = 0

        def begin(size: int, code: str, env: dict[str, str] | None = None, before: str = "") -> Job:
            nonlocal count
            directory = tmp_path / f"job{count}"
            directory.mkdir()
            count += 1
            context: AbstractContextManager[Job] = job(directory, size, code, env, before)
            return stack.enter_context(context)

        yield begin


@pytest.fixture(params=["shm", "tcp"])
def plane(request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment that chooses a data plane."""
    if not hasattr(_native.Engine, request.param):
        pytest.skip(f"this build has no {request.param} plane")
    return {"HOROVOD_CPU_OPERATIONS": request.param}


@pytest.fixture(scope="session")
def nurseries() -> Iterator[Nursery]:
    """One process for all tests that forks ranks."""
    with Nursery() as found:
        yield found


@pytest.fixture
def nursery(nurseries: Nursery) -> Iterator[Nursery]:
    """Where ranks come from quickly; a test's end is theirs."""
    yield nurseries
    nurseries.clear()
