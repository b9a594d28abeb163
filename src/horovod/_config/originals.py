"""Options of the original ``horovodrun`` that mean nothing here, or cannot be had yet: each with the reason.

They are understood, so that nobody's command line breaks for a reason that it does not tell. Pure data.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ORIGINALS", "Original", "yaml_keys"]


@dataclass(frozen=True)
class Original:
    """Some flags with one fate."""

    flags: tuple[str, ...]
    why: str
    values: int = 0
    """How many words follow each flag."""
    refused: bool = False
    """Whether a job that asks for it would not be the one that the user wants."""
    yaml: tuple[str, ...] = ()
    """Keys of a configuration file with the same fate."""


_ONE_MACHINE = "all ranks are on this machine"
_ELASTIC = "elastic jobs are not available yet in this version"
_AUTOTUNE = "autotuning is not available yet in this version"

ORIGINALS = (
    Original(("--disable-cache",), "nothing about hosts is cached"),
    Original(("--network-interfaces", "--network-interface"), _ONE_MACHINE, 1),
    Original(("-p", "--ssh-port", "-i", "--ssh-identity-file"), _ONE_MACHINE, 1),
    Original(
        ("--hierarchical-allreduce", "--no-hierarchical-allreduce"),
        _ONE_MACHINE,
        yaml=("params.hierarchical_allreduce",),
    ),
    Original(
        ("--hierarchical-allgather", "--no-hierarchical-allgather"),
        _ONE_MACHINE,
        yaml=("params.hierarchical_allgather",),
    ),
    Original(("--torus-allreduce", "--no-torus-allreduce"), _ONE_MACHINE, yaml=("params.torus_allreduce",)),
    Original(("--num-nccl-streams",), "NCCL is torch's", 1, yaml=("library_options.num_nccl_streams",)),
    Original(("--tcp",), "the MPI library chooses by itself; --mpi-args has its options"),
    Original(
        ("--gloo-timeout-seconds",),
        "see --start-timeout and --stall-check-shutdown-time-seconds",
        1,
        yaml=("library_options.gloo_timeout_seconds",),
    ),
    Original(("--no-autotune",), "nothing is tuned"),
    Original(("--autotune",), _AUTOTUNE, refused=True, yaml=("autotune.enabled",)),
    Original(
        (
            "--autotune-log-file",
            "--autotune-warmup-samples",
            "--autotune-steps-per-sample",
            "--autotune-bayes-opt-max-samples",
            "--autotune-gaussian-process-noise",
        ),
        _AUTOTUNE,
        1,
        refused=True,
        yaml=(
            "autotune.log_file",
            "autotune.warmup_samples",
            "autotune.steps_per_sample",
            "autotune.bayes_opt_max_samples",
            "autotune.gaussian_process_noise",
        ),
    ),
    Original(
        (
            "--min-np",
            "--min-num-proc",
            "--max-np",
            "--max-num-proc",
            "--slots-per-host",
            "--elastic-timeout",
            "--reset-limit",
            "--host-discovery-script",
        ),
        _ELASTIC,
        1,
        refused=True,
    ),
    Original(("--blacklist-cooldown-range",), _ELASTIC, 2, refused=True),
    Original(("--jsrun",), "starting ranks by jsrun is not available yet in this version", refused=True),
)


def yaml_keys() -> dict[str, str]:
    """Why a key of a configuration file has no effect, by key."""
    return {key: original.why for original in ORIGINALS for key in original.yaml}
