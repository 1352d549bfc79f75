"""Reads the project's Markdown documents: their tables, links and headings."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.checkout import ROOT

DOCS = ROOT / "docs"


def table_rows(path: Path, first: str) -> dict[str, str]:
    """Returns the rows of tables whose first column is called `first`.

    Each name in backticks in the first column, up to a brace, is a key. Its value is the row.
    """
    found: dict[str, str] = {}
    inside = False
    for line in path.read_text(encoding="utf-8").splitlines():
        cells = line.split("|")
        inside = line.startswith("|") and (inside or cells[1].strip() == first)
        if inside:
            found |= {name.split("{")[0]: line for name in re.findall(r"`([^`]+)`", cells[1])}
    return found


def constant(module: str, name: str) -> set[str]:
    """Returns the keys or items of a constant of an integration, without importing its engine."""
    path = ROOT / "python" / "dalsegno" / "integrations" / module
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == name:
            assert isinstance(node, (ast.Assign, ast.AnnAssign))
            value = node.value
            assert isinstance(value, (ast.Dict, ast.Tuple))
            items = value.keys if isinstance(value, ast.Dict) else value.elts
            return {str(ast.literal_eval(item)) for item in items if item is not None}
    raise AssertionError(f"{module} has no {name}")
