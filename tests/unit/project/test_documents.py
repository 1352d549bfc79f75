"""Documents link and name what exists, and their lists are lists on the site too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.checkout import ROOT
from tests.unit.house import files
from tests.unit.project.documents import anchors, dead_links, links, named_paths, prose


def test_every_relative_link_leads_somewhere() -> None:
    assert [complaint for page in files(ROOT, "*.md") for complaint in dead_links(ROOT, page)] == []


@pytest.mark.parametrize(
    ("link", "complaint"),
    [
        ("[a](other.md)", None),
        ("[a](other.md#after-kill--9)", None),
        ("[a](#here)", None),
        ("[a](https://example.org/other.md#x)", None),
        ("`[a](gone.md)`", None),
        ("```\n[a](gone.md)\n```", None),
        ("[a](gone.md)", "page.md:3 links gone.md: there is no such file"),
        ("[a](../page.md)", "page.md:3 links ../page.md: there is no such file"),
        ("[a](folder)", "page.md:3 links folder, a folder: link a page, such as its README.md"),
        ("[a](other.md#gone)", "page.md:3 links other.md#gone: other.md has no such heading"),
        ("![a](gone.svg)", "page.md:3 links gone.svg: there is no such file"),
    ],
)
def test_a_dead_link_is_reported_with_its_line(
    tmp_path: Path, link: str, complaint: str | None
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Here\n\n{link}\n")
    (tmp_path / "other.md").write_text("## After `kill -9`\n")
    (tmp_path / "folder").mkdir()
    assert dead_links(tmp_path, page) == ([complaint] if complaint else [])


def test_headings_of_the_same_text_get_numbers() -> None:
    text = "# A b\n## A b\n```\n# not one\n```\n## [C](d.md): e_f, g\n"
    assert anchors(text) == {"a-b", "a-b-1", "c-e_f-g"}


def test_links_in_code_are_none() -> None:
    assert links("`[a](b.md)` and [c](d.md)") == [(1, "d.md")]


def test_every_path_that_a_document_names_exists() -> None:
    # What tools write, and tests of what is not there.
    built = {"fuzz/artifacts"}
    missing = [
        f"{page.relative_to(ROOT)}: {path}"
        for page in files(ROOT, "*.md")
        for path in named_paths(page.read_text(encoding="utf-8"))
        if path not in built and not any(ROOT.glob(path.rstrip("/")))
    ]
    assert missing == []


def test_paths_are_found_in_backticks_only() -> None:
    text = "`crates/log/src` tests/a.py `make docs` [`docs/a.md`](a.md)\n```\n`tools/b.py`\n```\n"
    assert named_paths(text) == ["crates/log/src", "docs/a.md"]


def test_lists_within_lists_are_indented_by_four() -> None:
    """With less the documentation site shows them as one list."""
    assert [
        f"{page.relative_to(ROOT)}:{number}"
        for page in files(ROOT, "*.md")
        for number, line in enumerate(prose(page.read_text(encoding="utf-8")).splitlines(), 1)
        if (item := re.match(r"( +)(?:[-*]|\d+\.) ", line)) and len(item.group(1)) % 4
    ] == []
