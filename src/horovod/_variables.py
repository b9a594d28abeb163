"""Variables whose names begin with ``HOROVOD_`` and that nobody reads: which they are, and what was meant.

A setting that is spelt wrong has no effect, and without this nobody would say so. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from horovod._config import settings_table

__all__ = ["OF_A_RANK", "ORIGINALS", "PREFIX", "advice", "unread", "without_effect"]

PREFIX = "HOROVOD_"
_PLACE = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME", "JOB_ID")
OF_A_RANK = frozenset(PREFIX + name for name in _PLACE)
"""By these a launcher tells a rank its place."""
_OF_A_LAUNCHER = frozenset({"HOROVOD_RUN_CALLER", "HOROVOD_RUN_DIRECTORY"})

_NOT_YET = "it is not available yet in this version"
_ONE_MACHINE = "all ranks are on one machine"
_NO_GPU_WORK = "what happens on a GPU is the framework's business"
ORIGINALS: dict[str, str] = {
    "HOROVOD_ADASUM_MPI_CHUNK_SIZE": "MPI moves no data of Adasum",
    "HOROVOD_AUTOTUNE": _NOT_YET,
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": _NOT_YET,
    "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": _NOT_YET,
    "HOROVOD_AUTOTUNE_LOG": _NOT_YET,
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": _NOT_YET,
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": _NOT_YET,
    "HOROVOD_BATCH_D2D_MEMCOPIES": _NO_GPU_WORK,
    "HOROVOD_CCL_CACHE": "there is no CCL",
    "HOROVOD_CONTROLLER": "the ranks agree by a controller of their own, whoever has started them",
    "HOROVOD_DISABLE_NVTX_RANGES": _NO_GPU_WORK,
    "HOROVOD_ELASTIC": _NOT_YET,
    "HOROVOD_ELASTIC_TIMEOUT": _NOT_YET,
    "HOROVOD_ENABLE_ASYNC_COMPLETION": _NO_GPU_WORK,
    "HOROVOD_ENABLE_XLA_OPS": "XLA compiles the operations of TensorFlow without it",
    "HOROVOD_GLOO_IFACE": _ONE_MACHINE,
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "the ranks of a machine meet without an address",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "the ranks of a machine meet without a port",
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "see HOROVOD_START_TIMEOUT and HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
    "HOROVOD_HIERARCHICAL_ALLGATHER": _ONE_MACHINE,
    "HOROVOD_HIERARCHICAL_ALLREDUCE": _ONE_MACHINE,
    "HOROVOD_NUM_NCCL_STREAMS": "NCCL is torch's",
    "HOROVOD_SPARK_START_TIMEOUT": _NOT_YET,
    "HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX": _NOT_YET,
    "HOROVOD_TORUS_ALLREDUCE": _ONE_MACHINE,
}
"""The original's variables that have no effect here, and why."""
# What the original is told when it is compiled.
_BUILDING = tuple(
    PREFIX + name
    for name in ("WITH_", "WITHOUT_", "GPU", "CUDA_", "ROCM_", "NCCL_", "BUILD_", "CMAKE", "SKIP_COMPILE")
)


def unread(environ: Mapping[str, str]) -> list[str]:
    """All variables with our prefix that have no effect, by name."""
    known = {setting.env for setting in settings_table()} | OF_A_RANK | _OF_A_LAUNCHER
    return sorted(name for name in environ if name.startswith(PREFIX) and name not in known)


def advice(name: str) -> str:
    """Why a variable has no effect, or what was perhaps meant."""
    if name in ORIGINALS:
        return ORIGINALS[name]
    if name.startswith(_BUILDING):
        return "it is for building the original"
    import difflib  # only for who has made a mistake

    # Without the prefix, which would make every name resemble every other.
    names = [setting.env for setting in settings_table()] + sorted(OF_A_RANK) + sorted(ORIGINALS)
    words = {other.removeprefix(PREFIX): other for other in names}
    near = difflib.get_close_matches(name.removeprefix(PREFIX), words, n=1)
    return f"did you mean {words[near[0]]}?" if near else "it is not known"


def without_effect(environ: Mapping[str, str]) -> list[str]:
    """What the user should hear of, a line each: names that are not known, and wishes that are not met.

    Variables of the original that merely have nothing to change here are left out.
    """
    told = [name for name in unread(environ) if ORIGINALS.get(name) in (None, _NOT_YET)]
    asked = [name for name in told if name not in ORIGINALS or environ[name].strip() not in ("", "0")]
    return [f"{name} has no effect: {advice(name)}" for name in asked if not name.startswith(_BUILDING)]
