"""The on-disk index against RocksDB and LMDB; a program of `bench/programs` measures it."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dalsegno.paths import local_path
from dalsegno_bench.index.program import build_and_run

__all__ = ["SUMMARY", "main"]

SUMMARY = "the on-disk index against RocksDB (leveled, universal) and LMDB: 5 million blocks"

# Debian's path of the library. Without it the crate would compile RocksDB for half an hour.
LIBRARY = Path("/usr/lib/x86_64-linux-gnu/librocksdb.so")


def main(argv: Sequence[str]) -> int:
    """Builds the program if needed and runs it.

    Args:
        argv: As ``--help`` shows.

    Returns:
        Its exit code; 1 if it cannot be built.
    """
    options = _parser().parse_args(argv)
    if not LIBRARY.exists():
        print(
            "dalsegno: RocksDB is not installed: apt-get install librocksdb-dev libclang-dev",
            file=sys.stderr,
        )
        return 1
    rocksdb = {"ROCKSDB_LIB_DIR": str(LIBRARY.parent), "ROCKSDB_INCLUDE_DIR": "/usr/include"}
    return build_and_run(
        "dalsegno-bench-index",
        vars(options),
        features=["baselines"],
        environment=rocksdb,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dalsegno bench index", description=f"Measures {SUMMARY}."
    )
    parser.add_argument(
        "--blocks", type=int, default=5_000_000, help="blocks to put (default: %(default)s)"
    )
    parser.add_argument(
        "--rounds", type=int, default=10, help="parts in which engines take turns (%(default)s)"
    )
    parser.add_argument(
        "--dir",
        type=local_path,
        default=tempfile.gettempdir(),
        help="where a folder for the files is made and removed (%(default)s)",
    )
    parser.add_argument(
        "--only",
        default="dalsegno,rocksdb,rocksdb_universal,lmdb",
        help="engines, separated by commas (default: %(default)s)",
    )
    return parser
