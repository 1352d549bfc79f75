"""Programs that the checkout installs for these file systems, in environments of their own."""

from __future__ import annotations

from pathlib import Path

__all__ = ["find_program"]

# The root of the checkout.
ROOT = Path(__file__).resolve().parents[3]


def find_program(environment: str, name: str) -> Path | None:
    """Returns a program of an environment of `tools/env.py`, if it is there."""
    path = ROOT / ".envs" / environment / "bin" / name
    return path if path.is_file() else None
