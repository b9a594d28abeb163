"""Worlds whose processes have imported TensorFlow."""

from __future__ import annotations

import pytest

from tests.support.frameworks import import_tensorflow
from tests.support.nursery import Prepare


@pytest.fixture
def prepare() -> Prepare:
    """Of every world here."""
    return import_tensorflow
