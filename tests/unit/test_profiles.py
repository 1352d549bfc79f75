"""Files that keep what engines have learned, and the command that shows them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dalsegno import profiles

PRIOR = profiles.ComputePrior(1e-3, 1e-6, 1e-12, 1e-9)
ENGINE = {"model": "m", "device": "cpu", "block_bytes": "1048576", "block_tokens": "16"}


def learned(place: Path) -> tuple[profiles.Profile, Any]:
    """Returns a profile, and a model that has learned something."""
    profile = profiles.Profile(ENGINE, PRIOR, place)
    model = profile.model()
    for tokens in (100.0, 200.0, 400.0, 800.0):
        model.note_step(tokens, tokens * tokens / 2, tokens, 2e-3 + 5e-6 * tokens)
        model.note_load("log", tokens * 1e6, 1e-3 + tokens * 1e6 / 3e9)
    return profile, model


def test_the_next_engine_of_the_kind_starts_with_what_was_learned(tmp_path: Path) -> None:
    profile, model = learned(tmp_path / "profiles")
    profile.save(model)
    again = profiles.Profile(ENGINE, PRIOR, tmp_path / "profiles").model()
    assert again.request_s(0.0, 300.0, 512.0) == pytest.approx(model.request_s(0.0, 300.0, 512.0))
    assert again.load_s("log", 1e9) == pytest.approx(1 / 3, rel=0.1)
    other = profiles.Profile({**ENGINE, "device": "gpu"}, PRIOR, tmp_path / "profiles").model()
    assert other.load_s("log", 1e9) > 0.9


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: "",
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"version": 1', '"version": 2'),
        lambda text: text.replace('"byte_s": ', '"byte_s": -'),
        lambda text: text.replace('"compute"', '"compote"'),
        lambda text: text.replace('"learned"', '"learnt"'),
        lambda text: text.replace('"engine"', '"engines"'),
        lambda text: text.replace('"step_s": ', '"step_s": 1' + "0" * 400),
        lambda text: text.replace('"pair_s": ', '"pair_s": 7, "_": '),
        lambda text: text.replace('"byte_s": ', '"byte_s": 1e-320, "_": '),
        lambda text: text.replace('"measured": ', '"measured": null, "_": '),
        lambda text: text + " " * (1 << 20),
        lambda _: "[" * 100_000,
        lambda _: json.dumps([1]),
    ],
    ids=[
        "empty",
        "cut",
        "newer",
        "negative",
        "renamed",
        "learnt",
        "engines",
        "huge",
        "seven",
        "tiny",
        "null",
        "large",
        "deep",
        "list",
    ],
)
def test_a_damaged_file_is_a_start_without_knowledge(tmp_path: Path, damage: Any) -> None:
    profile, model = learned(tmp_path)
    profile.save(model)
    assert profile.path is not None
    profile.path.write_text(damage(profile.path.read_text(encoding="utf-8")), encoding="utf-8")
    fresh = profiles.Profile(ENGINE, PRIOR, None).model()
    found = profiles.Profile(ENGINE, PRIOR, tmp_path).model()
    assert found.explain() == fresh.explain()
    profile.save(model)
    assert profiles.read(profile.path)["engine"] == ENGINE


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    profile, model = learned(tmp_path / "file")
    profile.save(model)
    assert profile.model().load_s("log", 1e9) > 0.9


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command `dalsegno profile`."""
    command = [sys.executable, "-m", "dalsegno.cli", "profile", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_number_is_shown(tmp_path: Path) -> None:
    profile, model = learned(tmp_path)
    profile.save(model)
    shown = run("show", "--folder", str(tmp_path))
    assert shown.returncode == 0, shown.stderr
    for text in ("m on cpu", "a pair of tokens", "assumed", "65,536", "loading is faster"):
        assert text in shown.stdout
    plain = json.loads(run("show", "--folder", str(tmp_path), "--json").stdout)
    assert plain[str(profile.path)]["engine"] == ENGINE


def test_without_a_profile_it_says_how_to_get_one(tmp_path: Path) -> None:
    shown = run("show", "--folder", str(tmp_path))
    assert shown.returncode == 2
    assert "keep_profile" in shown.stderr


def test_what_is_no_file_is_a_start_without_knowledge(tmp_path: Path) -> None:
    # Nobody writes into the pipe: to wait for that would take forever.
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    for path in profiles.files(tmp_path):
        assert profiles.read(path) == {}
    assert profiles.files(None) == profiles.files(tmp_path / "missing") == []


def test_a_user_without_a_home_directory_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("DALSEGNO_PROFILES", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert profiles.folder() is None
    profile = profiles.Profile(ENGINE, PRIOR, profiles.folder())
    profile.save(profile.model())


def test_a_write_that_fails_leaves_no_file_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile, model = learned(tmp_path)
    old = tmp_path / f".{profile.path.stem if profile.path else ''}-abc.new"
    old.write_text("cut off")
    os.utime(old, (0, 0))

    def full(*_: Any) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    for _ in range(3):
        profile.save(model)
    assert list(tmp_path.iterdir()) == []


def test_impossible_times_leave_finite_numbers(tmp_path: Path) -> None:
    profile, model = learned(tmp_path)
    for seconds in (1e5, 1e5, 1e300, 1e-300, 1e300, float("nan")):
        model.note_step(1e6, 1e12, 1e6, seconds)
        model.note_load("log", 1e9, seconds)
    assert model.request_s(0.0, 1000.0, 512.0) >= 0
    assert model.load_s("log", 1e6) >= 0
    profile.save(model)
    assert profile.path is not None
    assert profiles.read(profile.path)
