"""Worlds whose processes have imported Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.frameworks import import_keras
from tests.support.nursery import Prepare
from tests.support.world import Workers

SECONDS = 100.0
"""For a case, most of which is a framework that compiles: a guard against hangs, not a measurement."""


class Patient:
    """A world that is given more time."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def run(self, case: Callable[..., Any], *args: Any) -> list[Any]:
        """Calls ``case(*args)`` in every process; the results by rank."""
        return self._workers.run(case, *args, deadline=SECONDS)


@pytest.fixture
def prepare() -> Prepare:
    """Of every world here."""
    return import_keras


@pytest.fixture
def world(world: Workers) -> Patient:
    """The persistent world."""
    return Patient(world)
