"""Reads which tests the documents name for their claims, and which tests there are.

A claim that a test holds ends with a sentence of a fixed form: ``Test: `name`.`` or
``Tests: `name`, `name`.`` An invariant that none holds ends with ``No test: reason.``
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_SENTENCE = re.compile(r"(?:(?<=\s)|^)Tests?:\s+(`[^`]+`(?:,\s+`[^`]+`)*)\.", re.MULTILINE)
_START = re.compile(r"(?:(?<=\s)|^)Tests?:\s", re.MULTILINE)
_RUST = re.compile(r"#\[test\](?:\s*(?:#\[[^\]]*\]|//[^\n]*))*\s*fn (\w+)")
_PYTHON = re.compile(r"^ *def (test_\w+)\(", re.MULTILINE)


def known_tests(root: Path) -> set[str]:
    """Returns the names of all test functions, and of the patches that plant bugs."""
    found: set[str] = set()
    for folder, pattern, names in (
        ("crates", "*.rs", _RUST),
        ("fuzz", "*.rs", _RUST),
        ("tests", "*.py", _PYTHON),
    ):
        for path in (root / folder).rglob(pattern):
            if "target" not in path.parts:
                found |= set(names.findall(path.read_text(encoding="utf-8")))
    return found | {path.name for path in (root / "crates/sim/mutations").glob("*.patch")}


def claimed(text: str) -> Iterator[tuple[int, str]]:
    """Gives (line, test) of each test that a document names, and no name if the form is wrong."""
    whole = {match.start(): match for match in _SENTENCE.finditer(text)}
    for start in _START.finditer(text):
        line = text.count("\n", 0, start.start()) + 1
        match = whole.get(start.start())
        if match is None:
            yield line, ""
            continue
        for name in re.findall(r"`([^`]+)`", match[1]):
            yield line, name


def without_a_test(text: str) -> list[int]:
    """Returns the lines of invariants that end neither with a test nor with why there is none."""
    found = []
    for section in re.finditer(r"^## Invariants\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL):
        for item in re.finditer(r"^\d+\. .*(?:\n {3}.*)*", section[1], re.MULTILINE):
            said = _SENTENCE.search(item[0])
            ends = said is not None and said.end() == len(item[0].rstrip())
            if not ends and not re.search(r"No test: [^\n]+\.\Z", item[0].rstrip()):
                found.append(text.count("\n", 0, section.start(1) + item.start()) + 1)
    return found
