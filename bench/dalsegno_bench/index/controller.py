"""The index's adaptive shape against fixed shapes; a program of `bench/programs` measures it."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dalsegno.paths import local_path
from dalsegno_bench.index.program import build_and_run

__all__ = ["SUMMARY", "main"]

SUMMARY = "the index's adaptive shape against a grid of fixed ones, over ten stages of hit rates"

# I/O is counted, and syncs of a disk would dominate the time: memory where possible.
MEMORY = Path("/dev/shm")  # noqa: S108 - the program makes a folder of its own in it


def main(argv: Sequence[str]) -> int:
    """Builds the program if needed and runs it.

    Args:
        argv: As ``--help`` shows.

    Returns:
        Its exit code; 1 if it cannot be built.
    """
    options = vars(_parser().parse_args(argv))
    return build_and_run("dalsegno-bench-controller", options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dalsegno bench controller",
        description=f"Measures {SUMMARY}: 4 KiB pages read and written, and time.",
    )
    parser.add_argument(
        "--prompts", type=int, default=192, help="prompts a stage, of 64-token pages (%(default)s)"
    )
    parser.add_argument("--pages", default="64,1", help="tokens of a page (default: %(default)s)")
    parser.add_argument(
        "--runs",
        type=int,
        default=6,
        help="of each shape, after warm-ups of other lengths (%(default)s)",
    )
    parser.add_argument("--quick", action="store_true", help="a smoke test of few prompts")
    parser.add_argument(
        "--dir",
        type=local_path,
        default=str(MEMORY) if MEMORY.is_dir() else tempfile.gettempdir(),
        help="where a folder for the files is made and removed (%(default)s)",
    )
    return parser
