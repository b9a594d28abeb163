"""Worlds whose processes have imported torch."""

from __future__ import annotations

import pytest

from tests.support.frameworks import import_torch
from tests.support.nursery import Prepare


@pytest.fixture
def prepare() -> Prepare:
    """Of every world here."""
    return import_torch
