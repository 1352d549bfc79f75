"""The tables of threads (docs/internals/threads.md) name the threads that the code starts."""

from __future__ import annotations

import re
from pathlib import Path

from tests.checkout import ROOT
from tests.unit.project.documents import DOCS, table_rows

NAME = re.compile(r'"(dalsegno(?:-[a-z]+)+)"')
# What tests and simulations start, and texts in quotes that are no threads.
OTHERS = {"crates/sim", "crates/serve/src/simulation", "python/dalsegno/demo"}


def sources() -> list[Path]:
    """Returns the files of the product that start threads."""
    found = [*ROOT.glob("crates/*/src/**/*.rs"), *ROOT.glob("python/dalsegno/**/*.py")]
    return [path for path in found if not any(path.is_relative_to(ROOT / one) for one in OTHERS)]


def started() -> set[str]:
    """Returns the names of threads in the code, without those of tests at the end of a file."""
    return {
        name
        for path in sources()
        for name in NAME.findall(path.read_text(encoding="utf-8").split("#[cfg(test)]\nmod")[0])
    }


def test_the_threads_of_the_page_are_those_of_the_code() -> None:
    documented = set(table_rows(DOCS / "internals" / "threads.md", "thread"))
    assert documented == started()
