"""The fixtures by which tests get worlds of worker processes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping

import pytest

from tests.support.world import Workers, WorldKey, Worlds, workers


def pytest_configure() -> None:
    """Undoes what a shell does to background jobs: all processes here would inherit an ignored signal."""
    for signum in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def worlds() -> Iterator[Worlds]:
    """The pool of persistent worlds."""
    pool = Worlds()
    yield pool
    pool.close()


@pytest.fixture
def world(request: pytest.FixtureRequest, worlds: Worlds) -> Workers:
    """The persistent world that the test's parameter (see ``tests.support.marks.on_worlds``) asks for."""
    return worlds.get(request.param)


@pytest.fixture
def start_workers() -> Iterator[Callable[..., Workers]]:
    """Starts processes that only this test uses, and ends them."""
    started: list[Workers] = []

    def start(size: int, plane: str = "shm", settings: Mapping[str, str] | None = None) -> Workers:
        started.append(workers(size, plane, settings))
        return started[-1]

    yield start
    for one in started:
        one.kill()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one world run together: fewer worlds to start."""

    def key(item: pytest.Item) -> WorldKey:
        callspec = getattr(item, "callspec", None)
        found = callspec.params.get("world") if callspec is not None else None
        return found if isinstance(found, WorldKey) else WorldKey(0, "")

    items.sort(key=key)
