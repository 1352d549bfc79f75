"""The on-disk index with 100 million blocks; a program of `bench/programs` measures it."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence

from dalsegno.paths import local_path
from dalsegno_bench.index.program import build_and_run

__all__ = ["SUMMARY", "main"]

SUMMARY = "the on-disk index with 100 million blocks: memory, files, opening, probes of 512"


def main(argv: Sequence[str]) -> int:
    """Builds the program if needed and runs it: about five minutes and 9 GB of disk.

    Args:
        argv: As ``--help`` shows.

    Returns:
        Its exit code; 1 if it cannot be built.
    """
    return build_and_run("dalsegno-bench-index-scale", vars(_parser().parse_args(argv)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dalsegno bench index-scale",
        description=f"Measures {SUMMARY} blocks, and the same with one million.",
    )
    parser.add_argument(
        "--blocks", type=int, default=100_000_000, help="blocks to put (default: %(default)s)"
    )
    parser.add_argument(
        "--small", type=int, default=1_000_000, help="blocks of the other index (%(default)s)"
    )
    parser.add_argument(
        "--cache", type=int, default=64 << 20, help="bytes of memory for tables (%(default)s)"
    )
    parser.add_argument(
        "--rounds", type=int, default=9, help="how often both are probed in turn (%(default)s)"
    )
    parser.add_argument(
        "--dir",
        type=local_path,
        default=tempfile.gettempdir(),
        help="where a folder for the files is made and removed (%(default)s)",
    )
    return parser
