"""Builds the documentation site into `site/`: `make docs`.

1. Pages keep their places in the repository, so a link that works on GitHub works here.
2. Every file that a page links is part of the site, whatever its kind.
3. A link that leads nowhere fails the build. mkdocs checks those of pages, rustdoc those of its own
   pages, and this file those of the finished site, into rustdoc's pages as well.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
STAGE = ROOT / "target" / "docs"
SITE = ROOT / "site"
RUSTDOC = ROOT / "target" / "doc"
MKDOCS = ROOT / ".envs" / "docs" / "bin" / "mkdocs"
ROOT_PAGES = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")

PYTHON_API = """# Python API

The page is made of the docstrings of the package. The [Python guide](../guides/python.md) shows how
the calls work together.

::: dalsegno
"""

RUST_API = """# Rust API

`dalsegno-store` is the only public Rust API. The other crates are documented for contributors.

| crate | |
|---|---|
"""


def pages(root: Path) -> list[Path]:
    """Returns the pages of the repository that belong to the site."""
    return [*(root / name for name in ROOT_PAGES), *sorted((root / "docs").rglob("*.md"))]


def linked_files(page: Path) -> Iterator[Path]:
    """Yields the files that a page links or shows, other pages left out."""
    for target in re.findall(r"\]\(\s*<?([^)\s>#]+)", page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve()
        if "://" not in target and path.is_file() and path.suffix != ".md":
            yield path


def stage(root: Path, folder: Path) -> None:
    """Lays out the pages and the files that they link as mkdocs wants them: in one folder."""
    shutil.rmtree(folder, ignore_errors=True)
    found = pages(root)
    linked = {path for page in found for path in linked_files(page) if path.is_relative_to(root)}
    for path in (*found, *sorted(linked)):
        place = folder / path.relative_to(root)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
    reference = folder / "docs" / "reference"
    (reference / "python-api.md").write_text(PYTHON_API)
    (reference / "rust-api.md").write_text(RUST_API + "".join(rust_rows(root)))


def rust_rows(root: Path) -> Iterator[str]:
    """Yields a row of the table of crates for each, the public one first."""
    crates = sorted(path.parent for path in root.glob("crates/*/Cargo.toml"))
    for crate in sorted(crates, key=lambda path: path.name != "store"):
        library = tomllib.loads((crate / "Cargo.toml").read_text()).get("lib", {}).get("name")
        name = f"dalsegno-{crate.name}"
        link = f"../../rust/{library or name.replace('-', '_')}/index.html"
        text = re.match(r"((?://! ?.+\n)+)", (crate / "src" / "lib.rs").read_text())
        first = re.sub(r"^//! ?", "", text.group(1), flags=re.MULTILINE) if text else ""
        # What rustdoc links is no link here.
        plain = re.sub(r"\[(`[^`]+`)\](\([^)]*\))?", r"\1", " ".join(first.split()))
        yield f"| [`{name}`]({link}) | {plain} |\n"


def run(*command: str | Path, **variables: str) -> None:
    """Runs a command from the project's root and ends the program if it fails."""
    words = [str(word) for word in command]
    if subprocess.run(words, cwd=ROOT, env=os.environ | variables, check=False).returncode:
        sys.exit(f"docs: `{' '.join(words)}` failed")


class Links(HTMLParser):
    """Collects the links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        """Reads a page."""
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes a link or an anchor."""
        values = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := values.get(name))}
        target = values.get("href" if tag in {"a", "link"} else "src")
        if target is not None:
            self.targets.append(target)


def dead_links(site: Path, skipped: str = "rust/") -> list[str]:
    """Returns the links of the site's pages that lead nowhere; rustdoc checks its own."""
    known: dict[Path, set[str]] = {}
    complaints = []
    for page in sorted(site.rglob("*.html")):
        name = page.relative_to(site).as_posix()
        # Links of the page for errors are absolute: the server may show it anywhere.
        if name.startswith(skipped) or name == "404.html":
            continue
        for target in Links(page.read_text(encoding="utf-8")).targets:
            url = urlsplit(target)
            if url.scheme or url.netloc or not target:
                continue
            file = (page.parent / unquote(url.path)).resolve() if url.path else page
            file = file / "index.html" if file.is_dir() else file
            if not file.is_file():
                complaints.append(f"{name} links {target}: there is no such file")
            elif url.fragment and file.suffix == ".html":
                if file not in known:
                    known[file] = Links(file.read_text(encoding="utf-8")).anchors
                if unquote(url.fragment) not in known[file]:
                    complaints.append(f"{name} links {target}: there is no such anchor")
    return sorted(set(complaints))


def main() -> int:
    """Builds the site; returns the exit status."""
    stage(ROOT, STAGE)
    print("docs: documenting the crates", flush=True)
    shutil.rmtree(RUSTDOC, ignore_errors=True)
    command = ("cargo", "doc", "--quiet", "--no-deps", "--workspace", "--locked")
    run(*command, RUSTDOCFLAGS="-D warnings")
    shutil.copytree(RUSTDOC, STAGE / "rust")
    print("docs: building the site", flush=True)
    run(MKDOCS, "build", "--quiet", "--strict", "--clean", NO_MKDOCS_2_WARNING="1")
    dead = dead_links(SITE)
    for complaint in dead:
        print(f"docs: {complaint}", file=sys.stderr)
    if not dead:
        print(f"docs: the site is in {SITE.relative_to(ROOT)}/: open site/index.html")
    return bool(dead)


if __name__ == "__main__":
    sys.exit(main())
