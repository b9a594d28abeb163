"""The wheel: small, one extension module, no needs but the C and C++ libraries, useful on its own."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ALLOWED = re.compile(r"lib(c|m|pthread|stdc\+\+)\.so\.\d+|ld-linux[\w.-]*")

HINT = "ImportError: horovod.numpy needs NumPy; install it with: pip install numpy"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(*command: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command to the end."""
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, env=env
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built with the build tools of this environment, from what these have compiled already."""
    directory = tmp_path_factory.mktemp("wheel")
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation")
    built = run(*pip, "-w", directory, ROOT, env=env)
    assert built.returncode == 0, built.stdout[-3000:] + built.stderr[-3000:]
    (found,) = directory.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def extension(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its one extension module, taken out."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".so")]
        return Path(archive.extract(name, tmp_path_factory.mktemp("extension")))


@pytest.fixture(scope="module")
def fresh(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` of a new environment that has the wheel and what it depends on."""
    home = tmp_path_factory.mktemp("fresh")
    venv.create(home, with_pip=True)
    installed = run(home / "bin" / "pip", "install", "--disable-pip-version-check", wheel)
    assert installed.returncode == 0, installed.stdout[-3000:] + installed.stderr[-3000:]
    return home / "bin"


def test_it_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size < 5_000_000


def test_it_holds_the_package_and_one_extension(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    (extension,) = [name for name in names if name.endswith(".so")]
    assert extension.startswith("horovod/_native.")
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"horovod", "khorovod"}
    assert "horovod/py.typed" in names
    assert "horovod/_native.pyi" in names
    assert any(name.endswith("/LICENSE") for name in names)


def test_it_needs_only_the_c_and_cxx_libraries(extension: Path) -> None:
    if shutil.which("readelf") is None:
        pytest.skip("no readelf on this machine; install binutils")
    dynamic = run("readelf", "-d", extension).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)
    assert needed
    assert [name for name in needed if not ALLOWED.fullmatch(name)] == []
    assert "RPATH" not in dynamic
    assert "RUNPATH" not in dynamic


def test_it_exports_its_entry_point_only(extension: Path) -> None:
    if shutil.which("readelf") is None:
        pytest.skip("no readelf on this machine; install binutils")
    symbols = run("readelf", "--dyn-syms", "-W", extension).stdout
    ours = re.findall(r"(?:GLOBAL|WEAK)\s+DEFAULT\s+\d+\s+(\S+)", symbols)
    assert "PyInit__native" in ours
    assert not [name for name in ours if "khorovod" in name]


def test_auditwheel_agrees(wheel: Path) -> None:
    if importlib.util.find_spec("auditwheel") is None:
        pytest.skip("auditwheel is not installed")
    shown = run(sys.executable, "-m", "auditwheel", "show", wheel)
    assert shown.returncode == 0, shown.stderr
    assert "manylinux" in shown.stdout


def test_a_fresh_environment_has_no_framework(fresh: Path) -> None:
    code = "import importlib.util as u; print([n for n in ('numpy', 'torch', 'jax') if u.find_spec(n)])"
    assert run(fresh / "python", "-c", code).stdout == "[]\n"


def test_import_works_with_no_framework(fresh: Path) -> None:
    code = (
        "import sys, horovod, horovod._core.basics as hvd\n"
        "hvd.init(); print(hvd.size()); hvd.shutdown()\n"
        "print('numpy' in sys.modules)"
    )
    done = run(fresh / "python", "-W", "error", "-c", code)
    assert (done.stdout, done.stderr) == ("1\nFalse\n", "")


def test_the_numpy_frontend_says_what_to_install(fresh: Path) -> None:
    done = run(fresh / "python", "-c", "import horovod.numpy")
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith(HINT)


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_the_command_works(fresh: Path, option: str) -> None:
    done = run(fresh / "horovodrun", option)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_two_ranks_meet_without_numpy(fresh: Path, tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(
        "import array\n"
        "import horovod._core.basics as hvd\n"
        "from horovod._core import runtime\n"
        "hvd.init()\n"
        "total = array.array('d', [hvd.rank() + 1.0] * 4)\n"
        "runtime.engine().allreduce('x', total, total, 1, 1.0, 1.0)\n"
        "assert list(total) == [3.0] * 4, total\n"
    )
    done = run(fresh / "horovodrun", "-np", "2", fresh / "python", script)
    assert (done.returncode, done.stderr) == (0, "")
