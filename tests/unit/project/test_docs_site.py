"""Staging and checking the documentation site (tools/docs_site.py), without mkdocs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.checkout import ROOT, load_tool


@pytest.fixture(scope="module")
def site_tool() -> Any:
    return load_tool("docs_site")


def test_every_page_and_every_file_that_a_page_links_is_staged(
    site_tool: Any, tmp_path: Path
) -> None:
    site_tool.stage(ROOT, tmp_path)
    for page in site_tool.pages(ROOT):
        assert (tmp_path / page.relative_to(ROOT)).is_file()
        for linked in site_tool.linked_files(page):
            assert (tmp_path / linked.relative_to(ROOT)).is_file()
    api = (tmp_path / "docs" / "reference" / "rust-api.md").read_text()
    for crate in (ROOT / "crates").glob("*/Cargo.toml"):
        assert f"`dalsegno-{crate.parent.name}`" in api


def test_every_page_is_in_the_navigation(site_tool: Any, tmp_path: Path) -> None:
    listed = (ROOT / "mkdocs.yml").read_text()
    for page in site_tool.pages(ROOT):
        name = page.relative_to(ROOT).as_posix()
        assert f": {name}\n" in listed or f"- {name.rpartition('/')[0]}/\n" in listed, name


@pytest.mark.parametrize(
    ("link", "complaint"),
    [
        ("other/", None),
        ("other/#there", None),
        ("other/index.html#there", None),
        ("#here", None),
        ("https://example.org/gone", None),
        ("gone/", "index.html links gone/: there is no such file"),
        ("other/#gone", "index.html links other/#gone: there is no such anchor"),
        ("#gone", "index.html links #gone: there is no such anchor"),
    ],
)
def test_a_dead_link_of_the_finished_site_is_reported(
    site_tool: Any, tmp_path: Path, link: str, complaint: str | None
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "index.html").write_text(f'<h1 id="here"><a href="{link}">x</a></h1>')
    (tmp_path / "other" / "index.html").write_text('<p id="there"></p>')
    assert site_tool.dead_links(tmp_path) == ([complaint] if complaint else [])


def test_a_folder_in_the_navigation_becomes_its_pages(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name, title in (("README.md", "Overview"), ("x.md", "One"), ("b.md", "Two")):
        (tmp_path / "a" / name).write_text(f"# {title}\n")
    hooks = load_tool("docs_hooks")
    assert hooks.expand(tmp_path, [{"Home": "i.md"}, {"All": ["a/"]}]) == [
        {"Home": "i.md"},
        {"All": [{"Overview": "a/README.md"}, {"Two": "a/b.md"}, {"One": "a/x.md"}]},
    ]


def test_a_role_of_a_docstring_becomes_a_link_if_one_heading_fits() -> None:
    page = (
        '<h3 id="d.A.close"></h3><h3 id="d.B.close"></h3><h3 id="d.B.done"></h3>'
        ":meth:<code>done</code> :meth:<code>close</code> "
        ":class:<code>B.close</code> <code>x</code>"
    )
    assert (
        load_tool("docs_hooks")
        .resolve_roles(page)
        .endswith(
            '<a href="#d.B.done"><code>done</code></a> <code>close</code> '
            '<a href="#d.B.close"><code>B.close</code></a> <code>x</code>'
        )
    )
