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


def prose(text: str) -> str:
    """Returns a document without code blocks and comments, with as many lines."""
    blank = re.compile(r"^```.*?^```$|<!--.*?-->", re.MULTILINE | re.DOTALL)
    return blank.sub(lambda match: "\n" * match.group().count("\n"), text)


def anchors(text: str) -> set[str]:
    """Returns the anchors that GitHub and the documentation site make of the headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", prose(text), re.MULTILINE):
        shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        number = next(
            n for n in range(len(found) + 1) if f"{slug}-{n}".removesuffix("-0") not in found
        )
        found.add(f"{slug}-{number}".removesuffix("-0"))
    return found


def links(text: str) -> list[tuple[int, str]]:
    """Returns (line, target) of each link and image of a document."""
    plain = re.sub(r"(`+)(?!`).*?\1", lambda match: " " * len(match.group()), prose(text))
    return [
        (plain.count("\n", 0, match.start()) + 1, match.group(1))
        for match in re.finditer(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)", plain)
    ]


def dead_links(root: Path, path: Path) -> list[str]:
    """Returns the relative links of a document that lead to no file or no heading."""
    complaints = []
    for line, target in links(path.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        where = f"{path.relative_to(root)}:{line}"
        file = (path.parent / name).resolve() if name else path
        if not file.is_relative_to(root) or not file.exists():
            complaints.append(f"{where} links {target}: there is no such file")
        elif file.is_dir():
            complaints.append(
                f"{where} links {target}, a folder: link a page, such as its README.md"
            )
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text("utf-8")):
            complaints.append(f"{where} links {target}: {file.name} has no such heading")
    return complaints


def named_paths(text: str) -> list[str]:
    """Returns the paths of the repository that a document names in backticks."""
    spans = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose(text))
    start = r"(?:\.ci|bench|crates|docs|examples|fuzz|python|requirements|tests|tools)/"
    return [span for span in spans if re.fullmatch(start + r"[\w./*-]*", span)]
