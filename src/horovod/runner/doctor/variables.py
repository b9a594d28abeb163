"""The environment: settings that are wrong, words of another launcher, names that nobody reads."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from horovod._config import Settings, settings_table
from horovod._identity import is_foreign
from horovod.runner.doctor.finding import Finding, Level

__all__ = ["leftovers", "settings", "unknown"]

_PREFIX = "HOROVOD_"
_PLACE = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME", "JOB_ID")
_OF_A_RANK = frozenset(_PREFIX + name for name in _PLACE)
_TORCHRUN = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"})
# Variables of the original, read when a job runs, that have no effect here.
_WITHOUT_EFFECT = frozenset(
    {
        "HOROVOD_ADASUM_MPI_CHUNK_SIZE",
        "HOROVOD_AUTOTUNE",
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
        "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
        "HOROVOD_AUTOTUNE_LOG",
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE",
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
        "HOROVOD_BATCH_D2D_MEMCOPIES",
        "HOROVOD_CCL_CACHE",
        "HOROVOD_CONTROLLER",
        "HOROVOD_DISABLE_NVTX_RANGES",
        "HOROVOD_ELASTIC",
        "HOROVOD_ELASTIC_TIMEOUT",
        "HOROVOD_ENABLE_ASYNC_COMPLETION",
        "HOROVOD_ENABLE_XLA_OPS",
        "HOROVOD_GLOO_IFACE",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR",
        "HOROVOD_GLOO_RENDEZVOUS_PORT",
        "HOROVOD_GLOO_TIMEOUT_SECONDS",
        "HOROVOD_HIERARCHICAL_ALLGATHER",
        "HOROVOD_HIERARCHICAL_ALLREDUCE",
        "HOROVOD_MPI_THREADS_DISABLE",
        "HOROVOD_NUM_NCCL_STREAMS",
        "HOROVOD_SPARK_START_TIMEOUT",
        "HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX",
        "HOROVOD_THREAD_AFFINITY",
        "HOROVOD_TORUS_ALLREDUCE",
    }
)


def settings(environ: Mapping[str, str]) -> Finding:
    """What every rank would stumble over."""
    try:
        Settings.from_env(environ)
    except ValueError as error:
        return Finding("settings", Level.PROBLEM, str(error), "correct or unset it")
    used = [setting.env for setting in settings_table() if environ.get(setting.env, "").strip()]
    return Finding("settings", Level.OK, ", ".join(f"{name}={environ[name]}" for name in used) or "none set")


def leftovers(environ: Mapping[str, str]) -> Finding:
    """By these a plain ``python`` would take itself for a rank of somebody's job."""
    found = sorted(name for name in environ if is_foreign(name) or name in _OF_A_RANK | _TORCHRUN)
    if not found:
        return Finding("leftovers of launchers", Level.OK, "none")
    shown = ", ".join(found[:8]) + (", ..." if len(found) > 8 else "")
    advice = (
        "inside a job that is as it should be; elsewhere a script without launcher takes itself for a rank:"
        f" unset {' '.join(found)}"
    )
    return Finding("leftovers of launchers", Level.WARNING, shown, advice)


def unknown(environ: Mapping[str, str]) -> Finding:
    """A setting that is spelt wrong has no effect, and nobody says so."""
    known = {setting.env for setting in settings_table()} | _OF_A_RANK
    names = sorted(name for name in environ if name.startswith(_PREFIX) and name not in known)
    if not names:
        return Finding("HOROVOD_ variables", Level.OK, "none without effect")
    advice = "; ".join(_advise(name, known) for name in names)
    return Finding("HOROVOD_ variables", Level.WARNING, f"without effect: {', '.join(names)}", advice)


def _advise(name: str, known: set[str]) -> str:
    if name in _WITHOUT_EFFECT:
        return f"{name} is the original's, and not available yet in this version"
    # Without the prefix, which would make every name resemble every other.
    words = {other.removeprefix(_PREFIX): other for other in known | _WITHOUT_EFFECT}
    near = difflib.get_close_matches(name.removeprefix(_PREFIX), words, n=1)
    return f"{name}: did you mean {words[near[0]]}?" if near else f"{name} is not known"
