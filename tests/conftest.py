"""The fixtures by which tests get worlds of worker processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping

import pytest

from tests.support import mpi
from tests.support.nursery import Prepare
from tests.support.world import Workers, WorldKey, Worlds, workers


def pytest_configure() -> None:
    """Undoes what a shell does to background jobs: all processes here would inherit an ignored signal."""
    for signum in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test that needs an ``mpirun`` that is not installed; but not in CI."""
    plane = _key(item).plane
    if plane in mpi.MPIS and not mpi.installed(plane) and os.environ.get("CI") != "true":
        pytest.skip(f"no {plane} wheel in {mpi.home(plane)}; `make peers` installs it")


@pytest.fixture(scope="session")
def worlds() -> Iterator[Worlds]:
    """The pool of persistent worlds."""
    pool = Worlds()
    yield pool
    pool.close()


@pytest.fixture
def prepare() -> Prepare | None:
    """What imports the frameworks that a world has from the start; see ``tests.support.nursery``."""
    return None


@pytest.fixture
def world(request: pytest.FixtureRequest, worlds: Worlds, prepare: Prepare | None) -> Workers:
    """The persistent world that the test's parameter (see ``tests.support.marks.on_worlds``) asks for."""
    return worlds.get(request.param, prepare)


@pytest.fixture
def start_workers(worlds: Worlds, prepare: Prepare | None) -> Iterator[Callable[..., Workers]]:
    """Starts processes that only this test uses, and ends them."""
    started: list[Workers] = []

    def start(size: int, plane: str = "shm", settings: Mapping[str, str] | None = None) -> Workers:
        nursery = None if prepare is None else worlds.nursery(settings or {}, prepare)
        started.append(workers(size, plane, settings, nursery))
        return started[-1]

    yield start
    for one in started:
        one.kill()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one world run together: fewer worlds to start."""

    items.sort(key=_key)


def _key(item: pytest.Item) -> WorldKey:
    callspec = getattr(item, "callspec", None)
    found = callspec.params.get("world") if callspec is not None else None
    return found if isinstance(found, WorldKey) else WorldKey(0, "")
