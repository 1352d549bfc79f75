"""The language of the repository, and small bad samples: each rule finds its breach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.checkout import ROOT, load_tool


@pytest.fixture
def language() -> Any:
    return load_tool("language")


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("a.md", "The store is " + "told of it.", "told"),
        ("a.rs", "fn it_" + "tells_the_caller() {}", "tells"),
        ("a.rs", "/// Opened " + "Anew\n", "Anew"),
        ("a.rs", "/// It waits for\n/// ever.", "for\n/// ever"),
        ("a.py", "# now and\n    # then", "now and\n    # then"),
        ("a.rs", "self.have_" + "done()", "have_done"),
    ],
)
def test_an_unwanted_word_is_found(
    name: str, text: str, word: str, tmp_path: Path, language: Any
) -> None:
    (tmp_path / name).write_text(text)
    assert language.check(tmp_path, [name]) == [f"{name}:1 says {word!r}"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", "`tells` is a code span."),
        ("a.rs", "// foretold, teller, endear, amended"),
        ("a.md", "For everything there is a limit."),
    ],
)
def test_other_words_and_code_spans_pass(
    name: str, text: str, tmp_path: Path, language: Any
) -> None:
    (tmp_path / name).write_text(text)
    assert language.check(tmp_path, [name]) == []


def test_long_sentences_are_counted_in_guides(tmp_path: Path, language: Any) -> None:
    (tmp_path / "docs").mkdir()
    long = " ".join(["word"] * 46) + ".\n\n"
    (tmp_path / "docs" / "a.md").write_text("Short.\n\n" * 100 + long * 4)
    complaints = language.check(tmp_path, ["docs/a.md"])
    assert len(complaints) == 4
    assert "46 words" in complaints[0]


def test_a_tenth_of_the_sentences_may_be_longer_than_the_limit(
    tmp_path: Path, language: Any
) -> None:
    text = "Short.\n\n" * 89 + (" ".join(["word"] * 30) + ".\n\n") * 11
    (tmp_path / "README.md").write_text(text)
    assert "more than 30 words" in language.check(tmp_path, ["README.md"])[0]


def test_code_tables_and_items_do_not_make_sentences_long(tmp_path: Path, language: Any) -> None:
    words = " ".join(["word"] * 30)
    text = (
        f"```\n{words}\n```\n| {words} |\n|---|\n# {words}\n- {words[:99]}\n- {words[:99]}\n\n"
        f"See `{words}` and [{words[:40]}](https://example.org/{'x' * 90}). Next sentence.\n"
    )
    found = list(language.sentences(text))
    assert [language.length(sentence) for _, sentence in found] == [20, 20, 11, 2]


def test_the_repository_keeps_the_rules(language: Any) -> None:
    complaints = language.check(ROOT, language.tracked(ROOT))
    assert not complaints, "\n".join(complaints)


def test_every_exception_is_needed_and_has_a_reason(language: Any) -> None:
    names = language.tracked(ROOT)
    assert len(language.EXCEPTIONS) <= language.MOST_EXCEPTIONS
    for pattern, word, reason in language.EXCEPTIONS:
        assert len(reason.split()) >= 3, pattern
        found = [
            place
            for name in names
            if Path(name).match(pattern)
            for place in language.words_in(ROOT, name)
            if word in {"*", place.text.lower()}
        ]
        assert found, f"{pattern} says {word} nowhere: remove the exception"
