#!/usr/bin/env python3
"""Builds the project's virtual environments, each from its own lock file, into `.envs/`.

A fresh machine needs Python 3.11 or newer, and for the engines gcc with binutils; this file uses
the standard library only. The engines disagree about the version of torch, so each has an
environment of its own.

1. What is installed is what the lock file says, byte for byte: every artefact is pinned by hash.
2. An environment is complete if and only if its stamp is there and fits; anything else is rebuilt
   from nothing.
3. Only one run builds at a time: it holds `.envs/.lock`.
4. Settings of pip and uv on this machine do not matter, except how to reach an index (mirror,
   proxy, certificates).

Usage:
    python3 tools/env.py dev vllm         builds what is missing
    python3 tools/env.py --list           shows each environment and its state
    python3 tools/env.py --lock vllm      resolves again and rewrites the lock file
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import cuda_stubs
import environments
import newer_python
import second_name
import source_tests
from environments import ENVIRONMENTS, ENVS, REQUIREMENTS, Environment, say

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
STAMP = "dalsegno-stamp.txt"
MINIMUM_PYTHON = (3, 11)

# Settings that say how to reach an index; every other PIP_* and UV_* variable is taken out.
_TRANSPORT = (
    "INDEX_URL",
    "INDEX",
    "CERT",
    "PROXY",
    "TIMEOUT",
    "CACHE_DIR",
    "SYSTEM_CERTS",
    "NATIVE_TLS",
)
_HIDDEN = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX")


class EnvError(RuntimeError):
    """An environment could not be built; the message says why and what to do."""


def clean_environment() -> dict[str, str]:
    """Returns this process's environment variables without those that steer pip, uv or Python."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _HIDDEN
        and (not name.startswith(("PIP_", "UV_")) or name.endswith(_TRANSPORT))
    }


def put_extras(row: Environment) -> None:
    """Copies a row's extras among the packages of its environment."""
    for target in sorted(row.folder.glob("lib/python*/site-packages")):
        for path in row.extra_files():
            place = target / path.relative_to(HERE / row.extras)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)


def run(*command: str | Path) -> None:
    """Runs a command from the project's root; its output appears only when it fails.

    Raises:
        EnvError: It failed or could not be started.
    """
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            cwd=ROOT,
            env=clean_environment(),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    except OSError as error:
        raise EnvError(f"cannot start {words[0]}: {error}") from error
    if done.returncode != 0:
        raise EnvError(f"`{' '.join(words)}` failed:\n{done.stdout.strip()[-3000:]}")


def fingerprint(*files: Path) -> str:
    """Hashes what an environment is made from: files, these tools, interpreter, machine."""
    digest = hashlib.sha256(f"{sys.version} {platform.machine()} {sys.base_prefix}".encode())
    modules = (cuda_stubs, environments, newer_python, second_name, source_tests)
    tools = (Path(str(module.__file__)) for module in modules)
    for path in (*files, Path(__file__), *tools):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def is_complete(folder: Path, expected: str) -> bool:
    """Returns whether the folder holds an environment with exactly this fingerprint."""
    stamp = folder / STAMP
    return stamp.is_file() and stamp.read_text() == expected


def create(folder: Path, *, with_pip: bool) -> None:
    """Creates an empty environment where nothing is left of an earlier one.

    Raises:
        EnvError: This Python has no working venv module.
    """
    shutil.rmtree(folder, ignore_errors=True)
    try:
        run(sys.executable, "-m", "venv", *(() if with_pip else ("--without-pip",)), folder)
    except EnvError as error:
        raise EnvError(
            f"{error}\nDebian and Ubuntu keep the module in a package: apt-get install python3-venv"
        ) from error


def bootstrap_uv() -> Path:
    """Installs the pinned uv into an environment of its own and returns its path."""
    folder, lock = ENVS / "uv", REQUIREMENTS / "uv.lock"
    binary, expected = folder / "bin" / "uv", fingerprint(lock)
    if not is_complete(folder, expected):
        say("installing uv, which installs the rest")
        create(folder, with_pip=True)
        pip = (folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install")
        run(*pip, "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes", "-r", lock)
        (folder / STAMP).write_text(expected)
    return binary


def build(row: Environment) -> None:
    """Builds one environment unless it is complete.

    Raises:
        EnvError: A step failed; what is half built has no stamp and is rebuilt by the next run.
    """
    if not row.lock.is_file():
        raise EnvError(
            f"{row.lock} is missing; make it with: python3 tools/env.py --lock {row.name}"
        )
    expected = fingerprint(*row.sources())
    if is_complete(row.folder, expected):
        say(f"{row.name} is up to date: {row.python}")
        return
    started = time.monotonic()
    uv = bootstrap_uv()
    say(f"building {row.name}: {row.purpose}")
    create(row.folder, with_pip=False)
    options = ("--no-config", "--quiet", "--require-hashes", "--python", row.python)
    run(uv, "pip", "sync", *options, row.lock)
    if row.adds:
        run(uv, "pip", "install", "--no-deps", *options, "--requirement", row.pins)
    try:
        for hook in row.hooks:
            hook(row.folder)
    except (cuda_stubs.StubError, second_name.MissingError, source_tests.FetchError) as error:
        raise EnvError(str(error)) from error
    put_extras(row)
    run(row.python, "-c", row.check)
    (row.folder / STAMP).write_text(expected)
    say(f"{row.name} is ready after {time.monotonic() - started:.0f} s: {row.python}")


def lock_requirements(row: Environment) -> None:
    """Resolves `NAME.in` and writes `NAME.lock` for every Python from the minimum on.

    Raises:
        EnvError: It has no lock file of its own, or cannot be resolved.
    """
    if row.base:
        raise EnvError(f"{row.name} has the lock file of {row.base}; lock that one")
    uv = bootstrap_uv()
    options: list[str | Path] = []
    for option in ("overrides", "excludes"):
        path = REQUIREMENTS / f"{row.name}-{option}.txt"
        if path.is_file():
            options += [f"--{option}", path.relative_to(ROOT)]
    version = ".".join(map(str, MINIMUM_PYTHON))
    source, target = (
        path.relative_to(ROOT) for path in (REQUIREMENTS / f"{row.name}.in", row.lock)
    )
    command = (
        uv,
        "pip",
        "compile",
        "--no-config",
        "--quiet",
        "--upgrade",
        "--universal",
        "--python-version",
        version,
    )
    header = f"python3 tools/env.py --lock {row.name}"
    shape = ("--generate-hashes", "--no-annotate", "--custom-compile-command", header)
    run(*command, *shape, *options, source, "--output-file", target)
    say(f"wrote {target}")


def show() -> None:
    """Prints the state of each environment."""
    for row in ENVIRONMENTS.values():
        done = row.lock.is_file() and is_complete(row.folder, fingerprint(*row.sources()))
        print(f"{row.name:12} {'ready' if done else 'to be built':12} {row.purpose}")


@contextmanager
def building() -> Iterator[None]:
    """Holds the lock under which environments change."""
    ENVS.mkdir(exist_ok=True)
    with (ENVS / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another run is building; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="env.py", description="Builds the project's virtual environments."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=" or ".join(ENVIRONMENTS))
    parser.add_argument("--list", action="store_true", help="show each environment and its state")
    parser.add_argument(
        "--lock", action="store_true", help="resolve again and rewrite the lock file"
    )
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in ENVIRONMENTS]
    if unknown:
        parser.error(f"no environment {', '.join(unknown)}; there are {', '.join(ENVIRONMENTS)}")
    if not options.names and not options.list:
        parser.error("name an environment, or ask for --list")
    if sys.version_info < MINIMUM_PYTHON:
        parser.error("Python 3.11 or newer is needed")
    try:
        with building():
            for name in options.names:
                (lock_requirements if options.lock else build)(ENVIRONMENTS[name])
        if options.list:
            show()
    except EnvError as error:
        print(f"env: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
