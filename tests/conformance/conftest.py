"""Which tests run on the planes that belong to one frontend: that frontend's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.marks import PLANES_OF_FRONTENDS
from tests.support.world import WorldKey


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Drops the combinations that make no sense, of the tests here."""
    here = Path(__file__).parent
    items[:] = [item for item in items if here not in item.path.parents or _makes_sense(item)]


def _makes_sense(item: pytest.Item) -> bool:
    params = item.callspec.params if hasattr(item, "callspec") else {}
    world = params.get("world")
    owner = PLANES_OF_FRONTENDS.get(world.plane) if isinstance(world, WorldKey) else None
    return owner is None or params.get("frontend") == owner
