"""Benches: each answers one question about the store on the machine at hand.

A bench is a module of this package, ``index_scale`` for ``index-scale``, with a line ``SUMMARY``
that says what it measures, and ``main(argv) -> int``. The last line that it prints is one JSON
object with every number; a module without ``SUMMARY`` is a part shared by benches. A bench that
needs an engine has a line ``ENVIRONMENT`` with the name of the environment under ``.envs``, which
``make bench`` builds and runs it in.

A figure means something beside another one of the same run: a bench prints its baseline too.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Sequence
from pathlib import Path

__all__ = ["run", "summaries"]


def summaries() -> dict[str, str]:
    """Names all benches and says in a line what each measures.

    The modules are read, not imported: a bench may need packages that are not installed.
    """
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        summary = _summary(path)
        if summary is not None:
            found[path.stem.replace("_", "-")] = summary
    return found


def run(name: str, argv: Sequence[str]) -> int:
    """Runs a bench of :func:`summaries` with its own arguments; returns its exit code."""
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    code = module.main(list(argv))
    return int(code)


def _summary(path: Path) -> str | None:
    for node in ast.parse(path.read_text(encoding="utf-8"), filename=str(path)).body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id="SUMMARY")], value=ast.Constant(value=str(text)))
                | ast.AnnAssign(target=ast.Name(id="SUMMARY"), value=ast.Constant(value=str(text)))
            ):
                return text
    return None
