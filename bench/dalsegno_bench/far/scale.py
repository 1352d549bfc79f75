"""The far index with millions of blocks, measured by a Rust program, and ten times as many."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

__all__ = ["extrapolated", "measure"]

# The bound of a store is 256 MiB, 8 million blocks. The program gets one that fits ten million.
MEMORY_MIB = 1024
LIMIT_S = 300
# What grows with the number of blocks. A probe grows with its logarithm at most.
LINEAR = ("blocks", "packs", "catalog_mb", "index_mb", "rss_mb", "first_load_s")


def measure(program: Path, blocks: int) -> dict[str, Any]:
    """Runs the program with so many blocks.

    Raises:
        RuntimeError: It failed.
    """
    command = [str(program), f"--blocks={blocks}", f"--memory-mib={MEMORY_MIB}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{program.name} failed: {done.stderr.strip()[-2000:]}")
    found = {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in json.loads(done.stdout.splitlines()[-1]).items()
    }
    return {"scale": found, "scale_x10": extrapolated(found)}


def extrapolated(found: dict[str, Any]) -> dict[str, Any]:
    """Returns the figures for ten times as many blocks that follow from those of a run."""
    return {name: round(10 * found[name], 3) for name in LINEAR}
