"""What mkdocs calls while it builds the documentation site (mkdocs.yml)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any


def title_of(page: Path) -> str:
    """Returns the first heading of a page."""
    heading = re.search(r"^# (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    if heading is None:
        raise ValueError(f"{page} has no title: begin it with `# Title`")
    return heading.group(1)


def pages_of(root: Path, folder: str) -> list[dict[str, str]]:
    """Returns the entries of a folder's pages: its README.md first, the others by name."""
    pages = sorted((root / folder).glob("*.md"), key=lambda page: (page.name != "README.md", page))
    return [{title_of(page): f"{folder}{page.name}"} for page in pages]


def expand(root: Path, entries: list[Any]) -> list[Any]:
    """Replaces each entry that is a folder by the folder's pages."""
    found: list[Any] = []
    for entry in entries:
        if isinstance(entry, str) and entry.endswith("/"):
            found += pages_of(root, entry)
        elif isinstance(entry, dict):
            found.append(
                {
                    name: expand(root, inside) if isinstance(inside, list) else inside
                    for name, inside in entry.items()
                }
            )
        else:
            found.append(entry)
    return found


def on_config(config: Any) -> Any:
    """Lists the pages of folders in the navigation."""
    config["nav"] = expand(Path(config["docs_dir"]), config["nav"])
    return config
