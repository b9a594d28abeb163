"""``--check-build``: an X for what is there, and for nothing else."""

from __future__ import annotations

import importlib.util

import pytest

from horovod._core import basics
from horovod.runner.build import describe_build
from horovod.runner.frameworks import FRAMEWORKS, look_for, route_by

INSTALLED = {"numpy": "2.1", "tensorflow-cpu": "2.16", "torch": "2.4"}


def describe(frontends: set[str]) -> str:
    found = [look_for(one, INSTALLED.get, lambda name: name in frontends) for one in FRAMEWORKS]
    return describe_build("1.2", found)


def test_the_table():
    text = describe({"horovod.numpy", "horovod.jax"})
    assert text.startswith("Khorovod v1.2:\n\nAvailable Frameworks:\n    [X] NumPy (numpy 2.1)\n")
    assert "    [ ] TensorFlow (tensorflow-cpu 2.16; no frontend in this version yet)\n" in text
    assert "    [ ] PyTorch (torch 2.4; no frontend in this version yet)\n" in text
    assert "    [ ] JAX (not installed)\n" in text
    assert [line for line in text.splitlines() if line.endswith(":")] == [
        "Khorovod v1.2:",
        "Available Frameworks:",
        "Available Controllers:",
        "Available Tensor Operations:",
    ]


def test_a_new_frontend_gets_its_x():
    assert "    [X] PyTorch (torch 2.4)\n" in describe({"horovod.torch"})


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda one: one.name)
def test_frontends_are_those_that_exist(framework):
    exists = importlib.util.find_spec(framework.frontend) is not None
    assert look_for(framework, route_of=lambda _: "").has_frontend == exists


def test_it_says_by_which_route_operations_go():
    found = [look_for(one, INSTALLED.get, lambda _: True, lambda _: "native kernels") for one in FRAMEWORKS]
    text = describe_build("1.2", found)
    assert "    [X] TensorFlow (tensorflow-cpu 2.16; native kernels)\n" in text
    assert "    [X] PyTorch (torch 2.4)\n" in text


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("print('noise'); print('native kernels')", "native kernels"),
        ("raise ImportError('no such library')", "cannot be imported: ImportError: no such library"),
        ("import os; os._exit(7)", "cannot be imported: exit code 7"),
    ],
)
def test_routes_are_asked_for_in_another_process(program, said):
    assert route_by(program) == said


def test_it_says_what_the_package_says(horovodrun):
    text = horovodrun.run("--check-build").stdout.decode()
    functions = {"MPI": basics.mpi_built, "Gloo": basics.gloo_built, "NCCL": basics.nccl_built}
    functions |= {"DDL": basics.ddl_built, "CCL": basics.ccl_built}
    said = {name: f"[X] {name}" in text for name in functions}
    assert said == {name: bool(built()) for name, built in functions.items()}


@pytest.mark.parametrize("flag", ["--check-build", "-cb"])
def test_it_needs_no_number_of_ranks(horovodrun, flag):
    done = horovodrun.run(flag)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"Khorovod v")
