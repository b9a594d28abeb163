"""Variables that nobody reads: which are pointed out, and what was meant."""

from __future__ import annotations

import pytest

from horovod._config import settings_table
from horovod._variables import ORIGINALS, advice, unread, without_effect


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("HOROVOD_CYCLETIME", "did you mean HOROVOD_CYCLE_TIME?"),
        ("HOROVOD_FUSION_TRESHOLD", "did you mean HOROVOD_FUSION_THRESHOLD?"),
        ("HOROVOD_STALL_CHECK_TIME", "did you mean HOROVOD_STALL_CHECK_"),
        ("HOROVOD_TIMELINES", "did you mean HOROVOD_TIMELINE?"),
        ("HOROVOD_AUTO_TUNE", "did you mean HOROVOD_AUTOTUNE?"),
        ("HOROVOD_LOCALRANK", "did you mean HOROVOD_LOCAL_RANK?"),
        ("HOROVOD_ZEBRA", "it is not known"),
        ("HOROVOD_AUTOTUNE", "not available yet"),
    ],
)
def test_advice(name: str, words: str) -> None:
    assert words in advice(name)
    assert without_effect({name: "1"}) == [f"{name} has no effect: {advice(name)}"]


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"HOME": "/", "MY_HOROVOD_X": "1"},
        {"HOROVOD_RANK": "0", "HOROVOD_JOB_ID": "x", "HOROVOD_RUN_DIRECTORY": "/d"},
        {"HOROVOD_AUTOTUNE": "0"},
        {"HOROVOD_AUTOTUNE": ""},
        {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_HIERARCHICAL_ALLREDUCE": "1"},
        {"HOROVOD_WITH_PYTORCH": "1", "HOROVOD_GPU_OPERATIONS": "NCCL"},
    ],
)
def test_nothing_to_say(environ: dict[str, str]) -> None:
    assert without_effect(environ) == []


@pytest.mark.parametrize("setting", settings_table(), ids=lambda setting: setting.env)
def test_settings_are_read(setting) -> None:  # type: ignore[no-untyped-def]
    assert unread({setting.env: "1"}) == []
    assert setting.env not in ORIGINALS
