"""The house rules as a test: who depends on whom, sizes, decisions, paths.

Each rule is a function from a source tree to a list of complaints; a complaint says where, what and
what to do. Every rule runs on this project and on a small bad sample, so that it is known to bite.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Rooms: what each crate may use. A crate that is not here has no place in the house yet.
ARROWS: dict[str, set[str]] = {
    "core": set(),
    "policy": {"core"},
    "io": {"core"},
    "log": {"core", "io"},
    "index": {"core", "io"},
    "store": {"core", "policy", "io", "log", "index"},
    "py": {"store"},
    "sim": {"core", "policy", "io", "log", "index", "store"},
}
# Crates that only tests may use; nothing of a release depends on them.
DEV_ONLY = {"sim"}
# Third-party crates that belong to one room.
HOMES = {"io-uring": "io", "libc": "io", "rustix": "io", "pyo3": "py"}
UNSAFE_ALLOWED = {"io", "py", "sim"}

ENGINES = {"vllm", "sglang", "lmcache"}
# Packages of ours that must stay usable without the integrations.
PURE_PACKAGES = ("model", "workload")

RUST_LINES = 450
PYTHON_LINES = 400
FUNCTION_LINES = 50

SKIPPED = {"target", "dist", "node_modules", "__pycache__"}

Rule = Callable[[Path], list[str]]


def files(root: Path, *patterns: str) -> Iterator[Path]:
    """Yields the project's files of these patterns, hidden folders and build outputs left out."""
    for pattern in patterns:
        for path in sorted(root.rglob(pattern)):
            parts = path.relative_to(root).parts
            if not any(part.startswith(".") or part in SKIPPED for part in parts):
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
    """A crate depends only on the rooms that the house plan lets it see."""
    complaints = []
    for manifest in sorted(root.glob("crates/*/Cargo.toml")):
        crate = manifest.parent.name
        if crate not in ARROWS:
            complaints.append(
                f"crates/{crate} is a new room: add it to ARROWS here and say why in docs/decisions"
            )
            continue
        for name, table, tests_only in crate_dependencies(manifest):
            room = name.removeprefix("dalsegno-")
            allowed = ARROWS[crate] | (DEV_ONLY | ARROWS[crate] if tests_only else set())
            if room != name and room not in allowed:
                complaints.append(
                    f"crates/{crate}/Cargo.toml [{table}]: {crate} may not use {name}; "
                    f"allowed: {', '.join(sorted(allowed)) or 'none'}. Move the code to a room "
                    "that may, or pass what it needs as a value"
                )
            if not tests_only and HOMES.get(name, crate) != crate:
                complaints.append(
                    f"crates/{crate}/Cargo.toml [{table}]: {name} belongs to crates/{HOMES[name]}; "
                    "call that room instead"
                )
    return complaints


def rust_forbids_unsafe(root: Path) -> list[str]:
    """Only the rooms that touch devices and Python may hold unsafe code."""
    return [
        f"crates/{lib.parts[-3]}/src/lib.rs: write #![forbid(unsafe_code)] under the crate's text; "
        f"unsafe code belongs to {', '.join(sorted(UNSAFE_ALLOWED))}"
        for lib in sorted(root.glob("crates/*/src/lib.rs"))
        if lib.parts[-3] not in UNSAFE_ALLOWED
        and "#![forbid(unsafe_code)]" not in lib.read_text().splitlines()
    ]


# Python: arrows.


def imports(path: Path, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Yields (line, absolute module) of every import of a module, late ones included."""
    for node in ast.walk(ast.parse(path.read_text(), filename=str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from dalsegno import model` imports a module too.
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = ast.unparse(node.func).rpartition(".")[2]
            if called in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def is_under(module: str, package: str) -> bool:
    """Tells whether a dotted name is the package or lies in it."""
    return module == package or module.startswith(package + ".")


def import_complaint(inside: tuple[str, ...], module: str) -> str | None:
    """Returns what is wrong with an import, made by a module at `inside` under dalsegno."""
    engine = module.partition(".")[0]
    if engine in ENGINES and inside[0] != "integrations":
        return f"imports {engine}: only dalsegno.integrations may know an engine; move it there"
    if is_under(module, "dalsegno.integrations") and inside[0] in PURE_PACKAGES:
        return (
            f"imports {module}: dalsegno.{inside[0]} must work without integrations; "
            "pass in what it needs"
        )
    if is_under(module, "dalsegno._native") and len(inside) > 1:
        return "imports dalsegno._native: use the public API, `from dalsegno import ...`"
    return None


def python_arrows(root: Path) -> list[str]:
    """Engines only in integrations, the native module only behind the public API."""
    complaints = []
    for path in files(root / "python" / "dalsegno", "*.py"):
        inside = path.relative_to(root / "python" / "dalsegno").with_suffix("").parts
        package = ("dalsegno", *inside[:-1])
        for line, module in imports(path, package):
            if complaint := import_complaint(inside, module):
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
        f"docs/decisions/README.md links {name}, which is not there: mend or remove the line"
        for name in targets
        if not (folder / name).is_file()
    ]


def dependencies_have_reasons(root: Path) -> list[str]:
    """Each third-party package has a line that says why it is here."""
    cargo = tomllib.loads((root / "Cargo.toml").read_text())["workspace"].get("dependencies", {})
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    wanted = [name for name in cargo if not name.startswith("dalsegno-")]
    groups = [project.get("dependencies", []), *project.get("optional-dependencies", {}).values()]
    wanted += [re.split(r"[^\w-]", line)[0] for group in groups for line in group]
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
        may_look_outside = bool({"tests", "bench", "benches"} & set(parts))
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if machine.search(line) or (outside.search(line) and not may_look_outside):
                complaints.append(
                    f"{path.relative_to(root)}:{number} names a path of one machine: take it from "
                    "a setting, or make it relative to the project"
                )
    return [text for text in complaints if not text.startswith("tests/unit/test_house.py")]


RULES: list[Rule] = [
    rust_arrows,
    rust_forbids_unsafe,
    python_arrows,
    file_sizes,
    function_sizes,
    decisions_are_listed,
    dependencies_have_reasons,
    no_machine_paths,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_project_keeps_the_rule(rule: Rule) -> None:
    complaints = rule(ROOT)
    assert not complaints, "\n".join([rule.__doc__ or "", *complaints])


CORE = "[package]\nname = 'dalsegno-core'\n"
LISTED = {
    "docs/decisions/README.md": "[one](0001-one.md)",
    "docs/decisions/0001-one.md": "",
}
PROJECT = {
    "Cargo.toml": "[workspace.dependencies]\ndalsegno-io = {path='x'}\n",
    "pyproject.toml": "[project]\n",
    "docs/decisions/0002-dependencies.md": "",
}

# (rule, a tree that breaks it, words of the complaint)
BAD: list[tuple[Rule, dict[str, str], str]] = [
    (rust_arrows, {"crates/attic/Cargo.toml": CORE}, "new room"),
    (
        rust_arrows,
        {"crates/core/Cargo.toml": CORE + "[dependencies]\ndalsegno-io.workspace = true"},
        "core may not use dalsegno-io",
    ),
    (
        rust_arrows,
        {"crates/log/Cargo.toml": "[dev-dependencies]\ndalsegno-index = '*'"},
        "log may not use dalsegno-index",
    ),
    (
        rust_arrows,
        {"crates/store/Cargo.toml": "[dependencies]\nx = {package='dalsegno-sim'}"},
        "store may not use dalsegno-sim",
    ),
    (
        rust_arrows,
        {"crates/index/Cargo.toml": "[target.'cfg(unix)'.dependencies]\nlibc = '0.2'"},
        "libc belongs to crates/io",
    ),
    (rust_forbids_unsafe, {"crates/log/src/lib.rs": "//! forbid(unsafe_code)"}, "crates/log"),
    (python_arrows, {"python/dalsegno/cli/main.py": "def f():\n import vllm.x"}, "main.py:2"),
    (python_arrows, {"python/dalsegno/store.py": "from lmcache import v1"}, "imports lmcache"),
    (
        python_arrows,
        {"python/dalsegno/bench/run.py": "importlib.import_module('sglang.srt')"},
        "imports sglang",
    ),
    (
        python_arrows,
        {"python/dalsegno/model/cost.py": "from ..integrations import vllm"},
        "must work without integrations",
    ),
    (
        python_arrows,
        {"python/dalsegno/workload/__init__.py": "from dalsegno import integrations"},
        "must work without integrations",
    ),
    (
        python_arrows,
        {"python/dalsegno/integrations/vllm/tier.py": "from dalsegno._native import Store"},
        "use the public API",
    ),
    (file_sizes, {"crates/io/src/a/b.rs": "\n" * (RUST_LINES + 1)}, "split it"),
    (file_sizes, {"tools/long.py": "\n" * (PYTHON_LINES + 1)}, "split it"),
    (function_sizes, {"tools/f.py": "def f():\n" + "    x = 1\n" * FUNCTION_LINES}, "f.py:1 f has"),
    (decisions_are_listed, {**LISTED, "docs/decisions/0002-two.md": ""}, "link it"),
    (decisions_are_listed, {**LISTED, "docs/decisions/why.md": ""}, "NNNN"),
    (decisions_are_listed, {**LISTED, "docs/decisions/0001-zwei.md": ""}, "take the next"),
    (decisions_are_listed, {"docs/decisions/README.md": "[x](0009-x.md)"}, "not there"),
    (
        dependencies_have_reasons,
        {**PROJECT, "Cargo.toml": "[workspace.dependencies]\nserde = '1'\n"},
        "`serde`",
    ),
    (
        dependencies_have_reasons,
        {**PROJECT, "pyproject.toml": "[project]\noptional-dependencies.x = ['rich>=1']\n"},
        "`rich`",
    ),
    (no_machine_paths, {"docs/guides/a.md": "see /" + "work/main"}, "a.md:1"),
    (no_machine_paths, {"tests/unit/a.py": "\n'/" + "root/x'"}, "a.py:2"),
    (no_machine_paths, {"Makefile": "A := ../" + "shared/data"}, "Makefile:1"),
]

GOOD: list[tuple[Rule, dict[str, str]]] = [
    (
        rust_arrows,
        {
            "crates/py/Cargo.toml": "[dependencies]\ndalsegno-store = '*'\npyo3 = '*'",
            "crates/store/Cargo.toml": "[dev-dependencies]\ndalsegno-sim = '*'\nlibc = '*'",
        },
    ),
    (python_arrows, {"python/dalsegno/__init__.py": "from dalsegno._native import Store"}),
    (python_arrows, {"python/dalsegno/integrations/vllm/tier.py": "from vllm import x"}),
    (function_sizes, {"tools/f.py": f'def f():\n    """{chr(10) * 80}"""\n'}),
    (decisions_are_listed, LISTED),
    (dependencies_have_reasons, PROJECT),
    (no_machine_paths, {"tests/a.py": "'../" + "shared'", "a.md": "network/work/x ~/root/"}),
]


def plant(root: Path, tree: dict[str, str]) -> None:
    for name, text in tree.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(("rule", "tree", "words"), BAD)
def test_a_broken_rule_is_seen_and_named(
    rule: Rule, tree: dict[str, str], words: str, tmp_path: Path
) -> None:
    plant(tmp_path, tree)
    complaints = rule(tmp_path)
    assert len(complaints) == 1, complaints
    assert words in complaints[0]


@pytest.mark.parametrize(("rule", "tree"), GOOD)
def test_what_is_allowed_is_not_complained_of(
    rule: Rule, tree: dict[str, str], tmp_path: Path
) -> None:
    plant(tmp_path, tree)
    assert rule(tmp_path) == []
