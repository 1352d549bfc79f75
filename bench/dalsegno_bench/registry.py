"""Benches: each answers one question about the store on the machine at hand.

A bench is a module in a folder of this package, ``index/index_scale.py`` for ``index-scale``. It
has a line ``SUMMARY`` that says what it measures, and ``main(argv) -> int``. The last line that it
prints is one JSON object with every number. A module without ``SUMMARY`` is a part of benches. A
bench that needs an engine has a line ``ENVIRONMENT`` with the name of the environment under
``.envs`` in which ``make bench`` runs it.

A figure means something only next to another one of the same run: a bench prints its baseline too.
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
    return {name: summary for name, (_, summary) in sorted(_benches().items())}


def run(name: str, argv: Sequence[str]) -> int:
    """Runs a bench of :func:`summaries` with its own arguments; returns its exit code."""
    module = importlib.import_module(_benches()[name][0])
    code = module.main(list(argv))
    return int(code)


def _benches() -> dict[str, tuple[str, str]]:
    """Finds all benches: name -> module and summary."""
    found = {}
    for path in Path(__file__).parent.glob("*/*.py"):
        if (summary := _summary(path)) is not None:
            module = f"{__package__}.{path.parent.name}.{path.stem}"
            found[path.stem.replace("_", "-")] = (module, summary)
    return found


def _summary(path: Path) -> str | None:
    for node in ast.parse(path.read_text(encoding="utf-8"), filename=str(path)).body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id="SUMMARY")], value=ast.Constant(value=str(text)))
                | ast.AnnAssign(target=ast.Name(id="SUMMARY"), value=ast.Constant(value=str(text)))
            ):
                return text
    return None
