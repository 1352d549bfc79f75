"""An index whose shape follows what is asked beside shapes that stay; a program does the work."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

__all__ = ["SUMMARY", "main"]

SUMMARY = "the index's adaptive shape against a grid of fixed ones, over ten stages of hit rates"

PROGRAM = "dalsegno-bench-controller"
# I/O is counted, and syncs of a disk would drown the time of all else: memory where it can be.
MEMORY = Path("/dev/shm")  # noqa: S108 - the program makes a folder of its own in it


def main(argv: Sequence[str]) -> int:
    """Builds the program if needed and runs it.

    Args:
        argv: As ``--help`` tells.

    Returns:
        Its exit code; 1 if it cannot be built.
    """
    options = _parser().parse_args(argv)
    source = Path(__file__).resolve().parents[3] / "benches" / "controller"
    missing = _missing(source)
    if missing is not None:
        print(f"dalsegno: {missing}", file=sys.stderr)
        return 1
    root = Path(os.environ.get("CARGO_TARGET_DIR", source.parents[1] / "target"))
    target = root / "bench-controller"
    build = ["cargo", "build", "--release", "--locked", "--quiet"]
    environment = {**os.environ, "CARGO_TARGET_DIR": str(target)}
    if subprocess.run(build, cwd=source, env=environment, check=False).returncode != 0:
        return 1
    given = vars(options)
    arguments = [f"--{name}={value}" for name, value in given.items() if name != "quick"]
    arguments += ["--quick"] * options.quick
    return subprocess.run([str(target / "release" / PROGRAM), *arguments], check=False).returncode


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dalsegno bench controller",
        description=f"Measures {SUMMARY}: 4 KiB pages read and written, and time.",
    )
    parser.add_argument(
        "--prompts", type=int, default=288, help="prompts a stage, of 64-token pages (%(default)s)"
    )
    parser.add_argument("--pages", default="64,1", help="tokens of a page (default: %(default)s)")
    parser.add_argument("--seeds", default="1,2", help="of the prompts (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a smoke test of few prompts")
    parser.add_argument(
        "--dir",
        default=str(MEMORY) if MEMORY.is_dir() else tempfile.gettempdir(),
        help="where a folder for the files is made and removed (%(default)s)",
    )
    return parser


def _missing(source: Path) -> str | None:
    """Says what this bench lacks here, and what to do; ``None`` if it can run."""
    if not source.is_dir():
        return "this bench runs from a checkout of the project: it compiles a program of its own"
    if shutil.which("cargo") is None:
        return "this bench compiles a program and needs Rust: https://rustup.rs"
    return None
