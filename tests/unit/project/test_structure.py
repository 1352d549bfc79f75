"""The structure of each crate, and small bad samples: each rule finds its breach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.checkout import ROOT, load_tool


@pytest.fixture
def structure() -> Any:
    return load_tool("structure")


def crate(root: Path, files: dict[str, str]) -> Path:
    """Writes a crate with these files under src/. Only a file called `small` stays small."""
    home = root / "crates" / "sample"
    for name, text in files.items():
        padding = "" if "small" in name else "\n" * 40
        (home / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (home / "src" / name).write_text(text + padding)
    (home / "Cargo.toml").write_text("[package]\n")
    return home


FIELDS = "".join(f"    f{n}: u32,\n" for n in range(11))

# (files of a crate, words of the complaint)
BAD: list[tuple[dict[str, str], str]] = [
    (
        {"a.rs": "use crate::b::B;\nstruct A;", "b.rs": "use super::a::A;\npub struct B;"},
        "a -> b; b -> a",
    ),
    # A name that a parent re-exports is an import of the file that defines it.
    (
        {
            "lib.rs": "mod a;\nmod b;\npub use a::A;\npub use b::B;",
            "a.rs": "use crate::B;\npub struct A(B);",
            "b.rs": "use crate::{\n    A,\n};\npub struct B;",
        },
        "circle of 2",
    ),
    ({"a.rs": "fn a() { crate::b::b() }", "b.rs": "pub fn b() { super::a::a() }"}, "circle of 2"),
    # A folder and a file that it holds.
    (
        {"x/mod.rs": "pub struct X;\nuse self::y::Y;", "x/y.rs": "use super::X;\npub struct Y;"},
        "x::y",
    ),
    # No file closes a circle, but two folders do.
    (
        {
            "x/mod.rs": "mod a;\npub mod c;",
            "x/a.rs": "use crate::y::b::B;",
            "x/c.rs": "pub struct C;",
            "y/mod.rs": "pub mod b;\nmod d;",
            "y/b.rs": "pub struct B;",
            "y/d.rs": "use crate::x::c::C;",
        },
        "circle of 2 folders: x -> y; y -> x",
    ),
    ({"a.rs": "pub struct A;", "b.rs": "use crate::a::A;\nimpl A {\n}"}, "b.rs:2 has methods of A"),
    (
        {"a.rs": "pub struct A<T>(T);", "b.rs": "impl<T: Fn() -> u8> crate::a::A<T> {\n}"},
        "methods of A",
    ),
    ({"a.rs": f"pub struct Wide {{\n{FIELDS}}}"}, "Wide has 11 fields"),
    ({"a.rs": "fn a(\n    one: u8,\n    (b, c): (u8, u8),\n) {}"}, "a.rs:3 takes the tuple (b, c)"),
    (
        {"a.rs": "use crate::small::B;\nstruct A(B);", "small.rs": "pub struct B;"},
        "small is small; move it to a",
    ),
    ({"a.rs": "struct State;", "b.rs": "enum State { A }"}, "2 types are called State"),
]

GOOD: list[dict[str, str]] = [
    {"a.rs": "use crate::b::B;\nstruct A;", "b.rs": "pub struct B;"},
    # Parents only declare and re-export.
    {
        "lib.rs": "mod a;\nmod b;\npub use b::B;\npub struct L;",
        "a.rs": "use crate::B;",
        "b.rs": "struct B;",
    },
    # Tests may use what uses their module.
    {
        "a.rs": "use crate::b::B;\nstruct A;",
        "b.rs": "pub struct B;\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}",
    },
    # Comments and texts are no code.
    {
        "a.rs": '// use crate::b::B;\nstruct A;\nconst T: &str = "crate::b::B";',
        "b.rs": "use crate::a::A;",
    },
    {"a.rs": f"pub struct LogStats {{\n{FIELDS}}}"},
    {"a.rs": "pub struct A;", "b.rs": "use crate::a::A;\nimpl Clone for A {\n}"},
]


@pytest.mark.parametrize(("files", "words"), BAD)
def test_a_breach_is_found_and_named(
    files: dict[str, str], words: str, tmp_path: Path, structure: Any
) -> None:
    complaints = structure.Crate(crate(tmp_path, files)).complaints()
    assert len(complaints) == 1, complaints
    assert words in complaints[0]


@pytest.mark.parametrize("files", GOOD)
def test_allowed_code_is_not_complained_of(
    files: dict[str, str], tmp_path: Path, structure: Any
) -> None:
    assert structure.Crate(crate(tmp_path, files)).complaints() == []


def test_long_functions_are_found(tmp_path: Path, structure: Any) -> None:
    home = crate(tmp_path, {"a.rs": "fn a() {\n" + "    b();\n" * 60 + "}\n"})
    assert "more than 62 lines" in structure.check(home.parents[1])[0]


def test_long_files_are_found(tmp_path: Path, structure: Any) -> None:
    home = crate(tmp_path, {"a.rs": "const A: u8 = 0;\n" * 360})
    assert "more than 400 lines" in structure.check(home.parents[1])[0]


def test_the_crates_keep_the_rules(structure: Any) -> None:
    complaints = structure.check(ROOT)
    assert not complaints, "\n".join(complaints)
