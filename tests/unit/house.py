"""The house rules: who depends on whom, sizes, decisions, paths; `test_house.py` runs them.

Each rule is a function from a source tree to a list of complaints; a complaint says where, what and
what to do.
"""

from __future__ import annotations

import ast
import fnmatch
import os
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

# The crates that each crate may use. A crate that is not listed here is refused.
ARROWS: dict[str, set[str]] = {
    "core": set(),
    "policy": {"core"},
    "arena": set(),
    "io": {"core"},
    "extent": {"core", "io"},
    "log": {"core", "io", "extent"},
    "far": {"core", "io", "extent"},
    "far-object": {"core", "io", "far"},
    "far-mooncake": {"core", "io", "far"},
    "index": {"core", "policy", "io"},
    "store": {
        "core",
        "policy",
        "arena",
        "io",
        "extent",
        "far",
        "far-object",
        "far-mooncake",
        "log",
        "index",
    },
    "serve": {"core", "arena", "io", "store"},
    "cuda": {"core", "io"},
    "py": {"policy", "store", "serve", "cuda"},
    "fake-cuda": set(),
    "sim": {"core", "policy", "arena", "io", "extent", "far", "log", "index", "store", "serve"},
}
# Crates that only tests may use; nothing of a release depends on them.
DEV_ONLY = {"sim", "fake-cuda"}
# What the tests of a crate use in addition: one suite runs over all tiers.
OF_TESTS = {"far": {"far-object", "far-mooncake"}}
# Third-party crates that belong to one crate.
HOMES = {
    "io-uring": "io",
    "libc": "io",
    "rustix": "io",
    "pyo3": "py",
    "libloading": "cuda",
    "object_store": "far-object",
    "reqwest": "far-object",
    "tokio": "far-object",
}
UNSAFE_ALLOWED = {"io", "cuda", "py", "sim", "fake-cuda"}

ENGINES = {"vllm", "sglang", "lmcache"}
# Packages of the wheel `dalsegno`, and of `dalsegno-bench`, by their folders.
PACKAGES = {"dalsegno": "python", "dalsegno_bench": "bench"}

# tools/structure.py names those beyond 450.
RUST_LINES = 600
PYTHON_LINES = 400
# What a user installs and an auditor reads: python/dalsegno without the contract of the border.
PRODUCT_LINES = 21_650
FUNCTION_LINES = 50
# rustfmt wraps code at 100, but neither comments nor texts.
RUST_COLUMNS = 120

SKIPPED = {"target", "dist", "site", "node_modules", "__pycache__"}

Rule = Callable[[Path], list[str]]


def files(root: Path, *patterns: str) -> Iterator[Path]:
    """Yields the project's files of these patterns, hidden folders and build outputs left out."""
    found = []
    for folder, folders, names in os.walk(root):
        # Environments and build outputs have a hundred thousand files.
        folders[:] = [one for one in folders if not one.startswith(".") and one not in SKIPPED]
        found += [Path(folder, name) for name in names if not name.startswith(".")]
    for pattern in patterns:
        for path in sorted(found):
            name = path.relative_to(root).as_posix() if "/" in pattern else path.name
            if fnmatch.fnmatchcase(name, pattern):
                yield path


# Rust: arrows and unsafe.


def crate_dependencies(manifest: Path) -> Iterator[tuple[str, str, bool]]:
    """Yields (dependency, table, whether only tests use it) of a Cargo.toml."""
    data = tomllib.loads(manifest.read_text())
    tables = [(data, ""), *((t, f"target.{n}.") for n, t in data.get("target", {}).items())]
    for table, prefix in tables:
        for kind in ("dependencies", "build-dependencies", "dev-dependencies"):
            for key, value in table.get(kind, {}).items():
                name = value.get("package", key) if isinstance(value, dict) else key
                yield name, prefix + kind, kind == "dev-dependencies"


def rust_arrows(root: Path) -> list[str]:
    """A crate depends only on the crates that ARROWS allows."""
    complaints = []
    for manifest in sorted(root.glob("crates/*/Cargo.toml")):
        crate = manifest.parent.name
        if crate not in ARROWS:
            complaints.append(
                f"crates/{crate} is a new crate: add it to ARROWS and say why in docs/decisions"
            )
            continue
        for name, table, tests_only in crate_dependencies(manifest):
            used = name.removeprefix("dalsegno-")
            allowed = ARROWS[crate] | (
                DEV_ONLY | OF_TESTS.get(crate, set()) if tests_only else set()
            )
            if used != name and used not in allowed:
                complaints.append(
                    f"crates/{crate}/Cargo.toml [{table}]: {crate} may not use {name}; "
                    f"allowed: {', '.join(sorted(allowed)) or 'none'}. Move the code to a crate "
                    "that may, or pass what it needs as a value"
                )
            if not tests_only and crate not in DEV_ONLY and HOMES.get(name, crate) != crate:
                complaints.append(
                    f"crates/{crate}/Cargo.toml [{table}]: {name} belongs to crates/{HOMES[name]}; "
                    "call that crate instead"
                )
    return complaints


def rust_forbids_unsafe(root: Path) -> list[str]:
    """Only the crates that touch devices and Python may hold unsafe code."""
    return [
        f"crates/{lib.parts[-3]}/src/lib.rs: write #![forbid(unsafe_code)] under the crate's text; "
        f"unsafe code belongs to {', '.join(sorted(UNSAFE_ALLOWED))}"
        for lib in sorted(root.glob("crates/*/src/lib.rs"))
        if lib.parts[-3] not in UNSAFE_ALLOWED
        and "#![forbid(unsafe_code)]" not in lib.read_text().splitlines()
    ]


def rust_threads_are_counted(root: Path) -> list[str]:
    """Threads are started in one place, which counts them, so that a forked child is recognised."""
    starts = re.compile(r"\bthread::(?:Builder|scope|spawn)\b")
    complaints = []
    for path in files(root, "crates/*/src/*.rs"):
        inside = path.relative_to(root / "crates").as_posix()
        if inside == "io/src/threads.rs" or inside.partition("/")[0] in DEV_ONLY:
            continue
        if "tests" in path.parts or path.name == "tests.rs":
            continue
        code = path.read_text().partition("#[cfg(test)]")[0]
        complaints += [
            f"crates/{inside}:{number} starts a thread that nobody counts: "
            "use dalsegno_io::{spawn, share_work, Workers}"
            for number, line in enumerate(code.splitlines(), 1)
            if starts.search(line.partition("//")[0])
        ]
    return complaints


def rust_examples_are_run(root: Path) -> list[str]:
    """A crate whose Cargo.toml says `doctest = false` has no example in its documentation."""
    fence = re.compile(r"^\s*//[/!]\s*```", re.MULTILINE)
    complaints = []
    for path in files(root, "crates/*/src/*.rs", "fuzz/src/*.rs"):
        inside = path.relative_to(root).parts
        crate = root.joinpath(*inside[: inside.index("src")])
        manifest = tomllib.loads((crate / "Cargo.toml").read_text())
        if not manifest.get("lib", {}).get("doctest", True) and fence.search(path.read_text()):
            complaints.append(
                f"{path.relative_to(root)} has an example that no test runs: "
                f"remove `doctest = false` from {crate.relative_to(root)}/Cargo.toml"
            )
    return complaints


# Python: arrows.


def imports(path: Path, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Yields (line, absolute module) of every import of a module, late ones included."""
    for node in ast.walk(ast.parse(path.read_text(), filename=str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from dalsegno import prefill` imports a module too.
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = ast.unparse(node.func).rpartition(".")[2]
            if called in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def is_under(module: str, package: str) -> bool:
    """Reports whether a dotted name is the package or a module in it."""
    return module == package or module.startswith(package + ".")


def may_import_engines(at: tuple[str, ...]) -> bool:
    """Whether a module, given by the parts of its name, is in the package of an engine."""
    if at[:2] == ("dalsegno", "integrations"):
        return at[2] != "common"
    return at[0] == "dalsegno_bench" and at[1] in ENGINES


def import_complaint(at: tuple[str, ...], module: str) -> str | None:
    """Returns what is wrong with an import, made by the module whose name has the parts `at`."""
    first = module.partition(".")[0]
    if first in ENGINES and not may_import_engines(at):
        return (
            f"imports {first}: only packages that are named after an engine may import one, "
            "in dalsegno.integrations or in dalsegno_bench; move it there"
        )
    if at[0] != "dalsegno":
        of_product = None
    elif first == "dalsegno_bench":
        of_product = "the product must work without benches; move it to dalsegno_bench"
    elif first == "unittest" or any(part.startswith("test") for part in module.split(".")):
        of_product = "test kits belong to tests and benches; move it there"
    else:
        of_product = None
    if of_product is not None:
        return f"imports {module}: {of_product}"
    if is_under(module, "dalsegno._native") and (at[0] != "dalsegno" or len(at) > 2):
        return "imports dalsegno._native: use the public API, `from dalsegno import ...`"
    return None


def python_arrows(root: Path) -> list[str]:
    """Engines only in packages of their own, nothing of tests and benches in the product."""
    complaints = []
    for package, folder in PACKAGES.items():
        for path in files(root / folder / package, "*.py"):
            at = path.relative_to(root / folder).with_suffix("").parts
            for line, module in imports(path, at[:-1]):
                if complaint := import_complaint(at, module):
                    complaints.append(f"{path.relative_to(root)}:{line} {complaint}")
    return list(dict.fromkeys(complaints))


# Sizes.


def file_sizes(root: Path) -> list[str]:
    """A file holds one idea."""
    bounds = [(path, RUST_LINES) for path in sorted(root.glob("crates/*/src/**/*.rs"))]
    bounds += [(path, PYTHON_LINES) for path in files(root, "*.py")]
    return [
        f"{path.relative_to(root)} has {lines} lines, more than {bound}: split it by idea"
        for path, bound in bounds
        if (lines := len(path.read_text().splitlines())) > bound
    ]


def product_size(root: Path) -> list[str]:
    """The wheel `dalsegno` stays small enough to be read as a whole."""
    lines = sum(len(path.read_text().splitlines()) for path in files(root / "python", "*.py"))
    if lines <= PRODUCT_LINES:
        return []
    complaint = (
        f"python/dalsegno has {lines} lines of Python, more than {PRODUCT_LINES}: "
        "shorten it, or move what only benches and tests need"
    )
    return [complaint]


def function_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Counts a function's lines from `def` to its end, without its docstring."""
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node, clean=False) is not None and first.end_lineno:
        lines -= first.end_lineno - first.lineno + 1
    return lines


def function_sizes(root: Path) -> list[str]:
    """A function does one thing. (Rust: clippy's too_many_lines.)"""
    return [
        f"{path.relative_to(root)}:{node.lineno} {node.name} has {lines} lines, more than "
        f"{FUNCTION_LINES}: name its parts"
        for path in files(root, "*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := function_lines(node)) > FUNCTION_LINES
    ]


def line_lengths(root: Path) -> list[str]:
    """A line can be read without scrolling. (Python's limit is the one that ruff is given.)"""
    ruff = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["ruff"]
    bounds = [(path, RUST_COLUMNS) for path in files(root, "crates/**/*.rs")]
    bounds += [(path, ruff["line-length"]) for path in files(root, "*.py")]
    # What ruff does not count either: a marker for it, with its reason.
    marker = re.compile(r"\s*# noqa\b.*")
    return [
        f"{path.relative_to(root)}:{number} has {columns} columns, more than {bound}: wrap it"
        for path, bound in bounds
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (columns := len(marker.sub("", line))) > bound
    ]


# Documents.


def decisions_are_listed(root: Path) -> list[str]:
    """Every decision has a number of its own and a line in the list."""
    folder = root / "docs" / "decisions"
    listed = (folder / "README.md").read_text()
    complaints, taken = [], dict[str, str]()
    for name in sorted(path.name for path in folder.glob("*.md") if path.name != "README.md"):
        if not re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", name):
            complaints.append(f"docs/decisions/{name}: name it NNNN-some-words.md")
        elif (other := taken.setdefault(name[:4], name)) != name:
            complaints.append(f"docs/decisions/{name} has the number of {other}: take the next")
        elif f"({name})" not in listed:
            complaints.append(f"docs/decisions/{name}: link it from README.md in the same folder")
    targets = re.findall(r"\]\((\d{4}-[^)]*)\)", listed)
    return complaints + [
        f"docs/decisions/README.md links {name}, which does not exist: fix or remove the line"
        for name in targets
        if not (folder / name).is_file()
    ]


def dependencies_have_reasons(root: Path) -> list[str]:
    """Each third-party package has a line that says why it is here."""
    cargo = tomllib.loads((root / "Cargo.toml").read_text())["workspace"].get("dependencies", {})
    wanted = list(cargo)
    for manifest in (root / "pyproject.toml", root / "bench" / "pyproject.toml"):
        project = tomllib.loads(manifest.read_text())["project"]
        extras = project.get("optional-dependencies", {}).values()
        groups = [project.get("dependencies", []), *extras]
        wanted += [re.split(r"[^\w-]", line)[0] for group in groups for line in group]
    wanted = [name for name in wanted if name.partition("-")[0] != "dalsegno"]
    reasons = (root / "docs" / "decisions" / "0002-dependencies.md").read_text()
    return [
        f"docs/decisions/0002-dependencies.md has no line for `{name}`: say why it is needed"
        for name in dict.fromkeys(wanted)
        if f"| `{name}` |" not in reasons
    ]


def no_machine_paths(root: Path) -> list[str]:
    """What is written here is true on every machine."""
    machine = re.compile(r"(?<![\w.~-])/(?:work|root)/")
    outside = re.compile(r"\.\./shared")
    complaints = []
    for path in files(root, "*.md", "*.rs", "*.py", "*.toml", "Makefile"):
        parts = path.relative_to(root).parts
        # Tests and benches may look for traces beside the checkout, and skip without them.
        may_look_outside = bool({"tests", "bench"} & set(parts))
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if machine.search(line) or (outside.search(line) and not may_look_outside):
                complaints.append(
                    f"{path.relative_to(root)}:{number} names a path of one machine: take it from "
                    "a setting, or make it relative to the project"
                )
    return complaints


RULES: list[Rule] = [
    rust_arrows,
    rust_forbids_unsafe,
    rust_threads_are_counted,
    rust_examples_are_run,
    python_arrows,
    file_sizes,
    product_size,
    function_sizes,
    line_lengths,
    decisions_are_listed,
    dependencies_have_reasons,
    no_machine_paths,
]
