"""The tables of messages (docs/formats/wire.md) agree with crates/serve/src/wire.rs."""

from __future__ import annotations

import re

import pytest
from tests.checkout import ROOT
from tests.unit.project.documents import DOCS

CODE = (ROOT / "crates" / "serve" / "src" / "wire.rs").read_text(encoding="utf-8")
PAGE = (DOCS / "formats" / "wire.md").read_text(encoding="utf-8")


def variants(name: str) -> list[tuple[str, str]]:
    """Returns the variants of an enum in their order, each with its comment."""
    match = re.search(rf"enum {name} {{\n(.*?)\n}}", CODE, re.DOTALL)
    assert match is not None
    found, comment = [], ""
    for line in match[1].splitlines():
        if said := re.match(r"    /// ?(.*)", line):
            comment += said[1] + " "
        elif variant := re.match(r"    (\w+)", line):
            found.append((variant[1], comment))
            comment = ""
    return found


def rows(name: str) -> list[list[str]]:
    """Returns the cells of the table whose second column has this name."""
    lines = PAGE.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith(f"| number | {name} "))
    found = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


@pytest.mark.parametrize("kind", ["Request", "Reply"])
def test_messages_have_the_numbers_of_the_page(kind: str) -> None:
    documented = [(int(row[0]), row[1]) for row in rows(kind.lower())]
    assert documented == list(enumerate(name for name, _ in variants(kind)))


def test_each_request_has_the_reply_of_the_page() -> None:
    documented = {row[1]: re.findall(r"[A-Z]\w+", row[-1]) for row in rows("request")}
    in_code = {
        name: re.findall(r"\[`Reply::(\w+)`\]", comment) for name, comment in variants("Request")
    }
    assert {name: sorted(replies) for name, replies in in_code.items()} == {
        name: sorted(replies) for name, replies in documented.items()
    }
