"""Reads Rust code as text: which items a file has, and what it names.

The parser is textual: it reads `use` declarations, `crate::`, `self::` and `super::` paths, and
items at the first column. Test modules inside a file and files under `tests/` do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

Module = tuple[str, ...]
Path_ = tuple[str, ...]

NOISE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|r(\#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?'(?:\\.[^']*|[^'\\])'""", re.DOTALL
)
VISIBILITY = r"(?:pub(?:\([^)]*\))?\s+)?"
ITEM = re.compile(
    rf"^{VISIBILITY}(?:unsafe\s+|const\s+|async\s+|extern\s+\S+\s+)*"
    r"(?P<kind>struct|enum|trait|type|union|fn|const|static|macro_rules!)\s+"
    r"(?:mut\s+)?(?P<name>\w+)",
    re.MULTILINE,
)
USE = re.compile(r"^[ \t]*(?P<public>pub(?:\([^)]*\))?\s+)?use\s+(?P<tree>[^;]+);", re.MULTILINE)
INLINE_PATH = re.compile(r"(?<![\w:])((?:crate|super|self)(?:::\w+)+)")
INHERENT = re.compile(r"^impl(?=[\s<])", re.MULTILINE)
TYPE_KINDS = {"struct", "enum", "trait", "type", "union"}


@dataclass
class Source:
    """One file of a crate."""

    path: Path
    module: Module
    code: str
    is_parent: bool
    items: dict[str, str] = field(default_factory=dict)
    uses: list[tuple[bool, Path_, str]] = field(default_factory=list)


def blanked(text: str) -> str:
    """Returns the code with comments and literals blanked; lines stay where they are."""
    return NOISE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def block_end(code: str, start: int) -> int:
    """Returns the index behind the block whose first brace is at or after `start`."""
    depth = 0
    for index in range(code.index("{", start), len(code)):
        depth += {"{": 1, "}": -1}.get(code[index], 0)
        if depth == 0:
            return index + 1
    return len(code)


def without_tests(code: str) -> str:
    """Blanks what is compiled for tests only: modules, functions, impls and imports."""
    for match in reversed(list(re.finditer(r"#\[cfg\((?:test|all\(test\b)[^\]]*\]", code))):
        semicolon, brace = code.find(";", match.end()), code.find("{", match.end())
        if semicolon < 0 and brace < 0:
            continue
        is_block = brace >= 0 and (semicolon < 0 or brace < semicolon)
        # `use a::{b};` has a brace as well.
        if is_block and not re.match(r"\s*(pub\S*\s+)?use\b", code[match.end() :]):
            end = block_end(code, match.end())
        else:
            end = semicolon + 1
        blank = re.sub(r"[^\n]", " ", code[match.start() : end])
        code = code[: match.start()] + blank + code[end:]
    return code


def without_uses(code: str) -> str:
    """Blanks the `use` declarations."""
    return USE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), code)


def split_tree(tree: str) -> Iterator[str]:
    """Splits the inside of `{…}` at its top-level commas."""
    depth, start = 0, 0
    for index, char in enumerate(tree):
        depth += {"{": 1, "}": -1}.get(char, 0)
        if char == "," and depth == 0:
            yield tree[start:index]
            start = index + 1
    yield tree[start:]


def leaves(tree: str, prefix: Path_ = ()) -> Iterator[tuple[Path_, str]]:
    """Yields (path, local name) of everything that a use tree names."""
    tree = tree.strip()
    head, brace, rest = tree.partition("{")
    if brace:
        base = (*prefix, *(part for part in head.strip().split("::") if part))
        for part in split_tree(rest[: rest.rindex("}")]):
            if part.strip():
                yield from leaves(part, base)
        return
    name, _, alias = re.sub(r"\s+", " ", tree).partition(" as ")
    path = (*prefix, *name.strip().split("::"))
    if path[-1] == "self":
        path = path[:-1]
    yield path, alias.strip() or path[-1]


def read_crate(root: Path) -> list[Source]:
    """Reads the files of a crate, tests left out."""
    sources = []
    for path in sorted((root / "src").rglob("*.rs")):
        inside = path.relative_to(root / "src").with_suffix("").parts
        if "tests" in inside or inside[0] in {"bin", "main"}:
            continue
        module = () if inside == ("lib",) else inside[:-1] if inside[-1] == "mod" else inside
        code = without_tests(blanked(path.read_text()))
        is_parent = inside[-1] in {"lib", "mod"} or path.with_suffix("").is_dir()
        source = Source(path, module, code, is_parent)
        source.items = {m["name"]: m["kind"] for m in ITEM.finditer(code)}
        for match in USE.finditer(code):
            source.uses += [(bool(match["public"]), *leaf) for leaf in leaves(match["tree"])]
        sources.append(source)
    return sources


def inherent_impls(code: str) -> Iterator[tuple[int, str]]:
    """Yields (line, type) of each inherent impl at the first column."""
    for match in INHERENT.finditer(code):
        head = code[match.end() : code.index("{", match.end())]
        if re.search(r"\bfor\s+[\w&(\[]", head):
            continue
        head = head.replace("->", "  ").strip()
        if head.startswith("<"):
            depth = 0
            for index, char in enumerate(head):
                depth += {"<": 1, ">": -1}.get(char, 0)
                if depth == 0:
                    head = head[index + 1 :].strip()
                    break
        if owner := re.match(r"(?:\w+::)*(\w+)", head):
            yield code.count("\n", 0, match.start()) + 1, owner[1]


def struct_fields(code: str) -> Iterator[tuple[str, int]]:
    """Yields each struct with its number of fields."""
    for match in re.finditer(rf"^{VISIBILITY}struct\s+(\w+)[^;{{(]*\{{", code, re.MULTILINE):
        body = code[match.end() : block_end(code, match.end() - 1)]
        yield match[1], len(re.findall(rf"^ {{4}}{VISIBILITY}\w+\s*:", body, re.MULTILINE))


def tuple_parameters(code: str) -> Iterator[tuple[int, str]]:
    """Yields (line, pattern) of each parameter of a function that is a tuple pattern."""
    for match in re.finditer(r"\bfn\s+\w+[^;{]*?\(", code):
        depth, end = 1, match.end()
        while depth and end < len(code):
            depth += {"(": 1, ")": -1}.get(code[end], 0)
            end += 1
        parameters = code[match.end() : end - 1]
        for found in re.finditer(r"(?:^|,)\s*(\([\w\s,&]+\))\s*:\s*&?\s*\(", parameters):
            yield code.count("\n", 0, match.end() + found.start(1)) + 1, found[1]


def function_lengths(code: str) -> Iterator[int]:
    """Yields the lines of each function, its signature included."""
    pattern = rf"^[ \t]*{VISIBILITY}(?:const\s+|unsafe\s+|async\s+)*fn\s+\w+"
    for match in re.finditer(pattern, code, re.MULTILINE):
        brace, semicolon = code.find("{", match.end()), code.find(";", match.end())
        if brace >= 0 and (semicolon < 0 or brace < semicolon or "[" in code[match.end() : brace]):
            yield code.count("\n", match.start(), block_end(code, brace)) + 1
