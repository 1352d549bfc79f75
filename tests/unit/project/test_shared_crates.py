"""The extension of CI shares compiled crates with the Rust tests: `EXTENSION_PROFILE` in Makefile.

Cargo compiles a crate again for each set of features, its own and those of what it uses.
"""

from __future__ import annotations

import shutil
import subprocess

import pytest
from tests.checkout import ROOT


def crates(*selection: str) -> set[str]:
    """What is compiled for a selection of packages: each crate with its features.

    Build scripts and macros run on the machine that compiles, and have features of their own.
    """
    shape = ("--locked", "--prefix", "none", "--format", "{p} {f}")
    command = ["cargo", "tree", *shape, "--edges", "normal,dev,no-proc-macro", *selection]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {line.removesuffix(" (*)") for line in said.splitlines()}


@pytest.mark.skipif(shutil.which("cargo") is None, reason="needs cargo")
def test_every_crate_of_the_extension_has_the_features_that_it_has_in_the_rust_tests() -> None:
    extension = crates("--package", "dalsegno-py")
    assert len(extension) > 20
    assert extension <= crates("--workspace")
