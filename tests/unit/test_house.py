"""The house rules on this project, and on small bad samples: each rule is known to bite."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.checkout import ROOT
from tests.unit.house import (
    FUNCTION_LINES,
    PRODUCT_LINES,
    PYTHON_LINES,
    RULES,
    RUST_COLUMNS,
    RUST_LINES,
    Rule,
    decisions_are_listed,
    dependencies_have_reasons,
    file_sizes,
    function_sizes,
    line_lengths,
    no_machine_paths,
    product_size,
    python_arrows,
    rust_arrows,
    rust_examples_are_run,
    rust_forbids_unsafe,
    rust_threads_are_counted,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_project_keeps_the_rule(rule: Rule) -> None:
    complaints = rule(ROOT)
    assert not complaints, "\n".join([rule.__doc__ or "", *complaints])


CORE = "[package]\nname = 'dalsegno-core'\n"
LISTED = {
    "docs/decisions/README.md": "[one](0001-one.md)",
    "docs/decisions/0001-one.md": "",
}
RUFF = {"pyproject.toml": "[tool.ruff]\nline-length = 100"}
PROJECT = {
    "Cargo.toml": "[workspace.dependencies]\ndalsegno-io = {path='x'}\n",
    "pyproject.toml": "[project]\n",
    "bench/pyproject.toml": "[project]\ndependencies = ['dalsegno==1', 'dalsegno-bench']\n",
    "docs/decisions/0002-dependencies.md": "",
}

# (rule, a tree that breaks it, words of the complaint)
BAD: list[tuple[Rule, dict[str, str], str]] = [
    (rust_arrows, {"crates/attic/Cargo.toml": CORE}, "new crate"),
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
        {"bench/dalsegno_bench/disk/log.py": "importlib.import_module('sglang.srt')"},
        "imports sglang",
    ),
    (
        python_arrows,
        {"python/dalsegno/integrations/common/opening.py": "from vllm.logger import init_logger"},
        "named after an engine",
    ),
    (
        python_arrows,
        {"python/dalsegno/cli/app.py": "from dalsegno_bench.disk import log"},
        "must work without benches",
    ),
    (
        python_arrows,
        {"python/dalsegno/integrations/sglang/rig.py": "from sglang.test.kits import fixtures"},
        "test kits belong to",
    ),
    (
        python_arrows,
        {"python/dalsegno/cli/app.py": "def f():\n from unittest import mock"},
        "app.py:2 imports unittest.mock",
    ),
    (
        python_arrows,
        {"bench/dalsegno_bench/disk/log.py": "from dalsegno._native import Store"},
        "use the public API",
    ),
    (
        python_arrows,
        {"python/dalsegno/integrations/vllm/tier.py": "from dalsegno._native import Store"},
        "use the public API",
    ),
    (file_sizes, {"crates/io/src/a/b.rs": "\n" * (RUST_LINES + 1)}, "split it"),
    (file_sizes, {"tools/long.py": "\n" * (PYTHON_LINES + 1)}, "split it"),
    (
        product_size,
        {"python/dalsegno/a.py": "\n" * PRODUCT_LINES, "python/dalsegno/b/c.py": "\n"},
        f"{PRODUCT_LINES + 1} lines of Python",
    ),
    (
        python_arrows,
        {"python/dalsegno/integrations/vllm/a.py": "from vllm.v1.test_utils import x"},
        "test kits belong to",
    ),
    (function_sizes, {"tools/f.py": "def f():\n" + "    x = 1\n" * FUNCTION_LINES}, "f.py:1 f has"),
    (
        rust_threads_are_counted,
        {"crates/log/src/a.rs": "\nstd::thread::scope(|scope| {"},
        "log/src/a.rs:2 starts",
    ),
    (
        rust_examples_are_run,
        {
            "crates/log/Cargo.toml": "[lib]\ndoctest = false",
            "crates/log/src/a/b.rs": "/// For example:\n    /// ```\n",
        },
        "log/src/a/b.rs has an example",
    ),
    (line_lengths, {**RUFF, "crates/io/tests/a.rs": "//" + "x" * RUST_COLUMNS}, "a.rs:1 has 122"),
    (line_lengths, {**RUFF, "tools/a.py": "\n#" + "x" * 100}, "a.py:2 has 101"),
    (line_lengths, {**RUFF, "tools/a.py": "x" * 101 + "  # noqa: S1"}, "a.py:1 has 101"),
    (decisions_are_listed, {**LISTED, "docs/decisions/0002-two.md": ""}, "link it"),
    (decisions_are_listed, {**LISTED, "docs/decisions/why.md": ""}, "NNNN"),
    (decisions_are_listed, {**LISTED, "docs/decisions/0001-zwei.md": ""}, "take the next"),
    (decisions_are_listed, {"docs/decisions/README.md": "[x](0009-x.md)"}, "does not exist"),
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
    (
        dependencies_have_reasons,
        {**PROJECT, "bench/pyproject.toml": "[project]\ndependencies = ['rich>=1']\n"},
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
    (
        rust_threads_are_counted,
        {
            "crates/io/src/threads.rs": "std::thread::Builder::new()",
            "crates/io/src/a.rs": "/// As `thread::scope`.\n#[cfg(test)]\nthread::spawn(run)",
            "crates/sim/src/a.rs": "std::thread::spawn(run)",
        },
    ),
    (
        rust_examples_are_run,
        {"crates/log/Cargo.toml": CORE, "crates/log/src/a.rs": "/// ```\n/// ```\n"},
    ),
    (python_arrows, {"python/dalsegno/__init__.py": "from dalsegno._native import Store"}),
    (python_arrows, {"python/dalsegno/integrations/vllm/tier.py": "from vllm import x"}),
    (
        python_arrows,
        {"bench/dalsegno_bench/sglang/rig.py": "import unittest\nfrom sglang.test import kits"},
    ),
    (
        product_size,
        {
            "python/dalsegno/a.py": "\n" * PRODUCT_LINES,
            "python/dalsegno/_native.pyi": "\n",
            "bench/dalsegno_bench/a.py": "\n",
        },
    ),
    (function_sizes, {"tools/f.py": f'def f():\n    """{chr(10) * 80}"""\n'}),
    (line_lengths, {**RUFF, "crates/io/src/a.rs": "é" * RUST_COLUMNS}),
    (line_lengths, {**RUFF, "tools/a.py": "x" * 100 + "  # noqa: S1 - why"}),
    (decisions_are_listed, LISTED),
    (dependencies_have_reasons, PROJECT),
    (no_machine_paths, {"tests/a.py": "'../" + "shared'", "a.md": "network/work/x ~/root/"}),
]


def plant(root: Path, tree: dict[str, str]) -> None:
    for name, text in tree.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(("rule", "tree", "words"), BAD)
def test_a_broken_rule_is_reported(
    rule: Rule, tree: dict[str, str], words: str, tmp_path: Path
) -> None:
    plant(tmp_path, tree)
    complaints = rule(tmp_path)
    assert len(complaints) == 1, complaints
    assert words in complaints[0]


@pytest.mark.parametrize(("rule", "tree"), GOOD)
def test_a_tree_that_keeps_the_rule_has_no_complaint(
    rule: Rule, tree: dict[str, str], tmp_path: Path
) -> None:
    plant(tmp_path, tree)
    assert rule(tmp_path) == []
