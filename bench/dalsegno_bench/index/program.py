"""Builds and runs the Rust programs of `bench/programs`, which time calls of microseconds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["build", "build_and_run"]


def build_and_run(
    program: str,
    arguments: Mapping[str, object],
    *,
    features: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> int:
    """Builds a Rust program of this checkout if needed and runs it.

    Args:
        program: Its name in the workspace ``bench/programs``.
        arguments: Option -> value, given as ``--option=value``, or as ``--option`` if it is true.
        features: Of its workspace, to be switched on.
        environment: What the build needs besides the present environment.

    Returns:
        Its exit code; 1 if it cannot be built here, with the reason on standard error.
    """
    binary = build(program, features=features, environment=environment)
    if binary is None:
        return 1
    given = {name: value for name, value in arguments.items() if value is not False}
    options = [f"--{name}" if one is True else f"--{name}={one}" for name, one in given.items()]
    return subprocess.run([str(binary), *options], check=False).returncode


def build(
    program: str,
    *,
    features: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Path | None:
    """Builds a Rust program of this checkout if needed.

    Args:
        program: Its name in the workspace ``bench/programs``.
        features: Of its workspace, to be switched on.
        environment: What the build needs besides the present environment.

    Returns:
        Its path; ``None`` if it cannot be built here, with the reason on standard error.
    """
    source = Path(__file__).resolve().parents[2] / "programs"
    missing = _missing(source)
    if missing is not None:
        print(f"dalsegno: {missing}", file=sys.stderr)
        return None
    root = Path(os.environ.get("CARGO_TARGET_DIR", source.parents[1] / "target"))
    target = root / "bench-programs"
    command = ["cargo", "build", "--release", "--locked", "--quiet", f"--bin={program}"]
    if features:
        command.append(f"--features={','.join(features)}")
    full = {**os.environ, **(environment or {}), "CARGO_TARGET_DIR": str(target)}
    if subprocess.run(command, cwd=source, env=full, check=False).returncode != 0:
        return None
    return target / "release" / program


def _missing(source: Path) -> str | None:
    """Says what a build lacks here, and what to do; ``None`` if it can be done."""
    if not source.is_dir():
        return "this bench runs from a checkout of the project: it compiles a program of its own"
    if shutil.which("cargo") is None:
        return "this bench compiles a program and needs Rust: https://rustup.rs"
    return None
