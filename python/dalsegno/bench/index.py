"""The index in files beside RocksDB and LMDB; a program of its own does the work."""

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

SUMMARY = "the index in files against RocksDB (leveled, universal) and LMDB: 5 million blocks"

PROGRAM = "dalsegno-bench-index"
# Where Debian and its kin put the library that the crate would otherwise compile for half an hour.
LIBRARY = Path("/usr/lib/x86_64-linux-gnu/librocksdb.so")


def main(argv: Sequence[str]) -> int:
    """Builds the program if needed and runs it.

    Args:
        argv: As ``--help`` tells.

    Returns:
        Its exit code; 1 if it cannot be built.
    """
    options = _parser().parse_args(argv)
    source = Path(__file__).resolve().parents[3] / "benches" / "index"
    missing = _missing(source)
    if missing is not None:
        print(f"dalsegno: {missing}", file=sys.stderr)
        return 1
    target = Path(os.environ.get("CARGO_TARGET_DIR", source.parents[1] / "target")) / "bench-index"
    environment = {
        **os.environ,
        "CARGO_TARGET_DIR": str(target),
        "ROCKSDB_LIB_DIR": str(LIBRARY.parent),
        "ROCKSDB_INCLUDE_DIR": "/usr/include",
    }
    build = ["cargo", "build", "--release", "--locked", "--quiet"]
    built = subprocess.run(build, cwd=source, env=environment, check=False)
    if built.returncode != 0:
        return 1
    arguments = [f"--{name}={value}" for name, value in vars(options).items()]
    return subprocess.run([str(target / "release" / PROGRAM), *arguments], check=False).returncode


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
        default=tempfile.gettempdir(),
        help="where a folder for the files is made and removed (%(default)s)",
    )
    parser.add_argument(
        "--only",
        default="dalsegno,rocksdb,rocksdb_universal,lmdb",
        help="engines, separated by commas (default: %(default)s)",
    )
    return parser


def _missing(source: Path) -> str | None:
    """Says what this bench lacks here, and what to do; ``None`` if it can run."""
    if not source.is_dir():
        return "this bench runs from a checkout of the project: it compiles a program of its own"
    if shutil.which("cargo") is None:
        return "this bench compiles a program and needs Rust: https://rustup.rs"
    if not LIBRARY.exists():
        return "RocksDB is not installed: apt-get install librocksdb-dev libclang-dev"
    return None
