"""Install Slurm and munge from the distribution's packages, for the tests of `srun`, where that is possible.

Needs root and apt-get; says what is missing otherwise, and the tests are skipped. Nothing is configured, no
service is started: the tests run daemons of their own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

PROGRAMS = ("munged", "scancel", "sinfo", "slurmctld", "slurmd", "squeue", "srun")
PACKAGES = ("munge", "slurm-client", "slurmctld", "slurmd")
SECONDS = 900
# Also where root's PATH has no sbin.
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def main() -> int:
    """Install what is missing; that it cannot be had is no error."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if not missing:
        return 0
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        packages = " ".join(PACKAGES)
        print(f"no {', '.join(missing)}: as root, `apt-get install {packages}` brings them", file=sys.stderr)
        return 0
    # RUNLEVEL=1 has Debian's invoke-rc.d start no service.
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    install = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *PACKAGES]
    for command in (install, ["apt-get", "update", "--quiet"], install):
        print(" ".join(command), flush=True)
        done = subprocess.run(command, env=env, timeout=SECONDS, stdout=subprocess.DEVNULL, check=False)
        if command is install and done.returncode == 0:
            return 0
    print("Slurm could not be installed", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
