"""Checks the structure inside each Rust crate: import circles, methods, wide structs, names.

    python3 tools/structure.py crates/log     # one crate; without arguments: all crates

1. The modules of a crate form no import circle, nor do its folders. A name counts as an import of
   the file that defines it, also when a parent module re-exports it.
2. An inherent `impl T` is in the file that defines `T`.
3. A struct has at most ten fields, except plain data.
4. A type's name is unique in its crate.
5. No parameter is a tuple that is taken apart: it is several parameters, or a struct.
6. A file of fewer than 40 lines that only one other file of its crate uses is part of that file.
7. 90% of the files have at most 333 lines without their test module, 99% of the functions at most
   46, those of tests included.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from rust_code import (
    INLINE_PATH,
    TYPE_KINDS,
    Module,
    Path_,
    Source,
    blanked,
    function_lengths,
    inherent_impls,
    read_crate,
    struct_fields,
    tuple_parameters,
    without_uses,
)

# A struct may have so many fields.
FIELDS = 10
# Plain data: settings, counters, what a listing shows, headers and entries as they are on disk.
PLAIN_DATA = re.compile(
    r"^(Config|Limits|\w*Stats\w*|\w*Counters|\w*Header|\w*Info|\w*Row|\w*Options|\w*Fields)$"
)
# A shorter file needs more than one user.
SATELLITE_LINES = 40
FILE_LINES_P90 = 333
# A longer file is named; `tests/unit/house.py` refuses one of more than 600 lines.
FILE_LINES = 450
FUNCTION_LINES_P99 = 46


class Crate:
    """The modules of a crate, and which name is defined where."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sources = {source.module: source for source in read_crate(root)}
        # Inline modules count as part of their file.
        self.exports = {
            module: {local: path for _, path, local in source.uses}
            for module, source in self.sources.items()
        }

    def resolve(self, source: Module, path: Path_, depth: int = 0) -> Module | None:
        """Returns the module that defines what a path names; None for other crates."""
        here: Module
        if path[0] == "crate":
            here, rest = (), path[1:]
        elif path[0] == "self":
            here, rest = source, path[1:]
        elif path[0] == "super":
            here, rest = source[:-1], path[1:]
            while rest and rest[0] == "super":
                here, rest = here[:-1], rest[1:]
        elif (*source, path[0]) in self.sources:
            here, rest = source, path
        else:
            return None
        for index, part in enumerate(rest):
            if (*here, part) in self.sources:
                here = (*here, part)
                continue
            target = self.exports.get(here, {}).get(part)
            is_defined = here in self.sources and part in self.sources[here].items
            if target and not is_defined and depth < 20:
                return self.resolve(here, (*target, *rest[index + 1 :]), depth + 1) or None
            return here
        return here

    def imports(self, source: Source) -> set[Module]:
        """Returns the modules that a file uses."""
        found: set[Module | None] = set()
        body = without_uses(source.code)
        for public, path, local in source.uses:
            # A parent module that only declares and re-exports uses nothing.
            if public and source.is_parent and not re.search(rf"\b{re.escape(local)}\b", body):
                continue
            found.add(self.resolve(source.module, path))
        for match in INLINE_PATH.finditer(body):
            found.add(self.resolve(source.module, tuple(match.group().split("::"))))
        return {one for one in found if one is not None} - {source.module}

    def circles(self) -> list[list[Module]]:
        """Returns the strongly connected sets of modules, larger than one."""
        return circles_of({module: self.imports(one) for module, one in self.sources.items()})

    def folder_edges(self) -> dict[Module, set[Module]]:
        """Returns which folder, or file at the top, imports which others."""
        edges: dict[Module, set[Module]] = {}
        for module, source in self.sources.items():
            # The root of a crate re-exports everything and is imported by nobody.
            if module:
                found = edges.setdefault(module[:1], set())
                found |= {one[:1] for one in self.imports(source)} - {module[:1], ()}
        return edges

    def complaints(self) -> list[str]:
        """Returns what breaks rules 1 to 6."""
        return [
            *self.circle_complaints(),
            *self.name_complaints(),
            *self.owner_complaints(),
            *self.satellite_complaints(),
        ]

    def circle_complaints(self) -> Iterator[str]:
        """Yields each import circle with the imports that close it."""
        for group in self.circles():
            inside = set(group)
            pairs = []
            for one in group:
                imported = sorted(self.imports(self.sources[one]) & inside)
                pairs.append(f"{shown(one)} -> {', '.join(map(shown, imported))}")
            yield (f"{self.root.name}: import circle of {len(group)} modules: {'; '.join(pairs)}")
        edges = self.folder_edges()
        folders = {module[:1] for module in self.sources if len(module) > 1}
        for group in circles_of(edges):
            if not folders & set(group):
                # A circle of modules, too.
                continue
            pairs = [
                f"{shown(one)} -> {', '.join(map(shown, sorted(edges[one] & set(group))))}"
                for one in group
            ]
            yield f"{self.root.name}: import circle of {len(group)} folders: {'; '.join(pairs)}"

    def homes(self) -> dict[str, list[Source]]:
        """Returns the files that define each type's name."""
        homes: dict[str, list[Source]] = {}
        for source in self.sources.values():
            for item, kind in source.items.items():
                if kind in TYPE_KINDS:
                    homes.setdefault(item, []).append(source)
        return homes

    def name_complaints(self) -> Iterator[str]:
        """Yields each name that several types have."""
        for item, places in sorted(self.homes().items()):
            if len(places) > 1:
                where = ", ".join(shown(place.module) for place in places)
                yield f"{self.root.name}: {len(places)} types are called {item}: {where}"

    def owner_complaints(self) -> Iterator[str]:
        """Yields methods away from their type, wide structs, and tuples as parameters."""
        homes = self.homes()
        for source in self.sources.values():
            at = source.path.relative_to(self.root.parent).as_posix()
            for line, owner in inherent_impls(source.code):
                if owner in homes and source not in homes[owner]:
                    home = shown(homes[owner][0].module)
                    yield f"{at}:{line} has methods of {owner}, which {home} defines"
            for struct, count in struct_fields(source.code):
                if count > FIELDS and not PLAIN_DATA.match(struct):
                    yield f"{at}: {struct} has {count} fields"
            for line, tuple_ in tuple_parameters(source.code):
                yield f"{at}:{line} takes the tuple {tuple_} apart; pass its parts, or a struct"

    def satellite_complaints(self) -> Iterator[str]:
        """Yields small files that only one other file uses, and that no parent re-exports."""
        users: dict[Module, set[Module]] = {}
        shown_by: set[Module | None] = set()
        for module, source in self.sources.items():
            for used in self.imports(source):
                users.setdefault(used, set()).add(module)
            if source.is_parent:
                exported = (path for public, path, _ in source.uses if public)
                shown_by.update(self.resolve(module, path) for path in exported)
        for module, source in self.sources.items():
            lines = source.code.count("\n")
            of = users.get(module, set())
            is_small = lines < SATELLITE_LINES and not source.is_parent
            if is_small and len(of) == 1 and module not in shown_by:
                yield f"{self.root.name}: {shown(module)} is small; move it to {shown(*of)}"


def circles_of(edges: dict[Module, set[Module]]) -> list[list[Module]]:
    """Returns the strongly connected sets of a graph, larger than one."""
    reach: dict[Module, set[Module]] = {}
    for module, imported in edges.items():
        seen: set[Module] = set()
        waiting = list(imported)
        while waiting:
            if (one := waiting.pop()) not in seen:
                seen.add(one)
                waiting += edges.get(one, ())
        reach[module] = seen
    groups = {
        frozenset({module, *(o for o in seen if module in reach.get(o, ()))})
        for module, seen in reach.items()
        if module in seen
    }
    return sorted(sorted(group) for group in groups)


def shown(module: Module) -> str:
    """Returns a module's path as Rust writes it."""
    return "::".join(module) or "lib"


def quantile(values: list[int], share: float) -> int:
    """Returns the smallest value that so large a share of the values does not exceed."""
    ordered = sorted(values) or [0]
    return ordered[min(len(ordered) - 1, -(-int(share * 1000) * len(ordered) // 1000) - 1)]


def size_tail(crates: list[Crate]) -> tuple[int, int]:
    """Returns p90 of the lines of files and p99 of the lines of functions, over all crates."""
    paths = [path for crate in crates for path in sorted((crate.root / "src").rglob("*.rs"))]
    texts = [path.read_text() for path in paths]
    files = [len(text.partition("#[cfg(test)]\nmod tests")[0].splitlines()) for text in texts]
    functions = [length for text in texts for length in function_lengths(blanked(text))]
    return quantile(files, 0.9), quantile(functions, 0.99)


def check(root: Path) -> list[str]:
    """Returns what breaks the rules in the crates of a source tree."""
    crates = [Crate(manifest.parent) for manifest in sorted(root.glob("crates/*/Cargo.toml"))]
    found = [complaint for crate in crates for complaint in crate.complaints()]
    if not any(crate.sources for crate in crates):
        return found
    files, functions = size_tail(crates)
    if files > FILE_LINES_P90:
        found.append(f"a tenth of the files has more than {files} lines; {FILE_LINES_P90} allowed")
    if functions > FUNCTION_LINES_P99:
        found.append(
            f"one function in a hundred has more than {functions} lines; "
            f"{FUNCTION_LINES_P99} allowed"
        )
    return found


def main() -> int:
    """Prints the complaints about the crates named on the command line."""
    root = Path(__file__).resolve().parents[1]
    if len(sys.argv) > 1:
        crates = [Crate(Path(one).resolve()) for one in sys.argv[1:]]
        found = [complaint for crate in crates for complaint in crate.complaints()]
    else:
        found = check(root)
        crates = [Crate(manifest.parent) for manifest in sorted(root.glob("crates/*/Cargo.toml"))]
    for complaint in found:
        print(complaint)
    for crate in crates:
        for path in sorted((crate.root / "src").rglob("*.rs")):
            if (lines := len(path.read_text().splitlines())) > FILE_LINES:
                print(f"note: {path.relative_to(root)} has {lines} lines; split it by idea")
    files, functions = size_tail(crates)
    print(f"{len(found)} complaints; files p90 {files} lines, functions p99 {functions} lines")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
