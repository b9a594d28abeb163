"""Parameters of the conformance tests."""

from __future__ import annotations

import pytest

from tests.conformance.frontends import FRONTENDS
from tests.support.marks import on_worlds
from tests.support.world import PLANES, WorldKey

every_frontend = pytest.mark.parametrize("frontend", FRONTENDS)
every_world = on_worlds(1, 2, 3, 4, 7)

DYNAMIC = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}


def keys_of_worlds(*sizes: int, **settings: str) -> pytest.MarkDecorator:
    """Like ``on_worlds``, but gives the key: for tests that may need the world more than once."""
    keys = [WorldKey(size, plane, tuple(sorted(settings.items()))) for size in sizes for plane in PLANES]
    return pytest.mark.parametrize("world", keys, ids=str)
