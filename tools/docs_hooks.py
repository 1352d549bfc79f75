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


def resolve_roles(page: str) -> str:
    """Turns the roles of docstrings, such as ``:meth:`close```, into links on a rendered page.

    A name that fits no heading of the page, or several, stays code.
    """
    anchors = re.findall(r'<h\d id="([^"]+)"', page)

    def link(match: re.Match[str]) -> str:
        name = match.group(1)
        fitting = [one for one in anchors if one == name or one.endswith(f".{name}")]
        code = f"<code>{name}</code>"
        return f'<a href="#{fitting[0]}">{code}</a>' if len(fitting) == 1 else code

    return re.sub(r":(?:meth|class|func|exc|attr):<code>~?([\w.]+)</code>", link, page)


def on_page_content(html: str, **_: Any) -> str:
    """Resolves the roles of docstrings."""
    return resolve_roles(html)
