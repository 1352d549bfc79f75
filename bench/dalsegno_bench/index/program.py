"""Builds and runs the Rust programs of `bench/programs`, which time calls of microseconds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["build_and_run"]


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
    source = Path(__file__).resolve().parents[2] / "programs"
    missing = _missing(source)
    if missing is not None:
        print(f"dalsegno: {missing}", file=sys.stderr)
        return 1
    root = Path(os.environ.get("CARGO_TARGET_DIR", source.parents[1] / "target"))
    target = root / "bench-programs"
    build = ["cargo", "build", "--release", "--locked", "--quiet", f"--bin={program}"]
    if features:
        build.append(f"--features={','.join(features)}")
    full = {**os.environ, **(environment or {}), "CARGO_TARGET_DIR": str(target)}
    if subprocess.run(build, cwd=source, env=full, check=False).returncode != 0:
        return 1
    given = {name: value for name, value in arguments.items() if value is not False}
    options = [f"--{name}" if one is True else f"--{name}={one}" for name, one in given.items()]
    return subprocess.run([str(target / "release" / program), *options], check=False).returncode


def _missing(source: Path) -> str | None:
    """Says what a build lacks here, and what to do; ``None`` if it can be done."""
    if not source.is_dir():
        return "this bench runs from a checkout of the project: it compiles a program of its own"
    if shutil.which("cargo") is None:
        return "this bench compiles a program and needs Rust: https://rustup.rs"
    return None
