"""The index bench is a workspace of its own, whose lock file nothing else brings up to date."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from tests.checkout import ROOT

LOCK = ROOT / "bench/programs/Cargo.lock"


def locked() -> dict[str, set[str]]:
    """Dependencies of each of our crates, as the bench's lock file has them."""
    packages = tomllib.loads(LOCK.read_text(encoding="utf-8"))["package"]
    # A name that occurs in two versions is followed by one.
    return {
        one["name"]: {dependency.split()[0] for dependency in one.get("dependencies", ())}
        for one in packages
        if "source" not in one
    }


def manifest_of(crate: str) -> Path:
    """The manifest of one of our crates; the bench's own lies elsewhere."""
    return ROOT / "crates" / crate.removeprefix("dalsegno-") / "Cargo.toml"


@pytest.mark.parametrize("crate", sorted(name for name in locked() if manifest_of(name).exists()))
def test_a_crate_is_locked_with_what_it_depends_on(crate: str) -> None:
    wanted = tomllib.loads(manifest_of(crate).read_text(encoding="utf-8")).get("dependencies", {})
    optional = {
        name for name, given in wanted.items() if isinstance(given, dict) and given.get("optional")
    }
    missing = wanted.keys() - optional - locked()[crate]
    assert not missing, f"run `cargo update --workspace` in bench/programs: {sorted(missing)}"
