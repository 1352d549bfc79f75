"""Documents name tests that exist, and each invariant names the tests that hold it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.checkout import ROOT
from tests.unit.house import files
from tests.unit.project.claims import claimed, known_tests, without_a_test

# They are being rewritten with what they describe.
NOT_YET = {"far.md"}
TESTS = known_tests(ROOT)


def pages(folder: str) -> list[Path]:
    """Returns the documents of a folder."""
    return [page for page in files(ROOT, "*.md") if page.is_relative_to(ROOT / folder)]


def test_every_test_that_a_document_names_exists() -> None:
    assert [
        f"{page.relative_to(ROOT)}:{line}: "
        + (f"there is no test {name}" if name else "write: Tests: `one`, `another`.")
        for page in pages("docs")
        for line, name in claimed(page.read_text(encoding="utf-8"))
        if name not in TESTS
    ] == []


def test_every_invariant_names_its_tests_or_why_it_has_none() -> None:
    assert [
        f"{page.relative_to(ROOT)}:{line}: end with Test: `name`. or No test: reason."
        for page in pages("docs/internals")
        if page.name not in NOT_YET
        for line in without_a_test(page.read_text(encoding="utf-8"))
    ] == []


def test_tests_of_each_kind_are_found() -> None:
    assert {
        "every_result_is_that_of_the_definition",
        "blocks_are_written_when_the_setting_says",
        "no_target_finds_a_bug_in_its_corpus_or_near_it",
        "test_tests_of_each_kind_are_found",
    } <= TESTS
    assert any(name.endswith(".patch") for name in TESTS)
    assert not {"until", "objects", "pages"} & TESTS


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It holds. Test: `a`.", [(1, "a")]),
        ("1. It\n   holds.\n   Tests: `a`,\n   `b`.", [(3, "a"), (3, "b")]),
        ("Tests: `a` and `b`.", [(1, "")]),
        ("Test: a.", [(1, "")]),
        ("Test: `a`", [(1, "")]),
        ("No test: it needs a disk that lies. `make test`", []),
    ],
)
def test_the_form_is_fixed(text: str, found: list[tuple[int, str]]) -> None:
    assert list(claimed(text)) == found


def test_an_invariant_without_a_test_is_reported_with_its_line() -> None:
    text = (
        "# Page\n\n## Invariants\n\n1. It holds.\n   Test: `a`.\n2. It holds.\n"
        "3. It\n   holds. No test: the type makes it so.\n4. Test: `a`. It holds.\n\n"
        "## Steps\n\n1. It goes.\n"
    )
    assert without_a_test(text) == [7, 10]
