"""The table of settings says what the store does, and the page says what the table says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.checkout import ROOT, load_tool

import dalsegno

if TYPE_CHECKING:
    from config_page import Setting

config_page = load_tool("config_page")
EXAMPLE: str = config_page.EXAMPLE
SETTINGS: tuple[Setting, ...] = config_page.SETTINGS
PAGE = ROOT / "docs" / "guides" / "configuration.md"
BY_NAME = {setting.name: setting for setting in SETTINGS}
NUMBERS: dict[str, Callable[[str], float]] = {"number": int, "seconds": float}
BOUNDED = [setting for setting in SETTINGS if setting.kind in ("bytes", "number")]


def limits(path: Path, **settings: object) -> dict[str, Any]:
    with dalsegno.open(path, **{"capacity": "64MiB", "staging": "16MiB", **settings}) as store:
        return store.limits()


def size(text: str) -> int:
    """Reads a default or a bound of the table."""
    number, _, unit = text.partition(" ")
    return int(number) << {"": 0, "KiB": 10, "MiB": 20, "GiB": 30}[unit]


def test_the_table_has_every_setting_once() -> None:
    assert sorted(BY_NAME) == sorted(dalsegno.config_keys())
    assert len(BY_NAME) == len(SETTINGS)


def test_the_page_matches_the_table() -> None:
    # `python3 tools/config_page.py > docs/guides/configuration.md` fixes it.
    assert PAGE.read_text(encoding="utf-8") == config_page.page()


def test_the_defaults_of_the_table_are_those_of_the_store(tmp_path: Path) -> None:
    written = {
        one.name: NUMBERS[one.kind](one.default) if one.kind in NUMBERS else one.default
        for one in SETTINGS
        if not one.derived
    }
    assert limits(tmp_path / "written", **{**written, "capacity": "512MiB"}) == limits(
        tmp_path / "default", capacity="512MiB", staging=None
    )
    assert limits(tmp_path / "segment")["segment_bytes"] == 2 << 20
    assert limits(tmp_path / "large", capacity="200GiB")["segment_bytes"] == 256 << 20


@pytest.mark.parametrize("setting", BOUNDED, ids=lambda setting: str(setting.name))
def test_the_bounds_of_the_table_are_those_of_the_store(setting: Setting, tmp_path: Path) -> None:
    low, *high = (size(text) for text in setting.allowed)
    # Room for a large segment; and a staging pool of the largest size is only worth refusing.
    room = {"capacity": "20GiB"} if setting.name == "segment" else {}
    limits(tmp_path / "low", **{**room, setting.name: low})
    if low:
        below = low - 1 if setting.kind == "number" else low // 2
        with pytest.raises(dalsegno.InvalidError):
            limits(tmp_path / "below", **{**room, setting.name: below})
    for bound in high:
        if setting.name != "staging":
            limits(tmp_path / "high", **{**room, setting.name: bound})
        with pytest.raises(dalsegno.InvalidError, match=setting.name):
            limits(tmp_path / "above", **{**room, setting.name: 2 * bound})


@pytest.mark.parametrize(
    ("setting", "value"),
    [(one, value) for one in SETTINGS if one.kind == "choice" for value in one.allowed],
    ids=lambda one: one if isinstance(one, str) else one.name,
)
def test_the_choices_of_the_table_are_those_of_the_store(
    setting: Setting, value: str, tmp_path: Path
) -> None:
    assert setting.default in setting.allowed
    assert limits(tmp_path / "store", **{setting.name: value})[setting.name] == value


def test_the_store_accepts_no_choice_that_the_table_lacks(tmp_path: Path) -> None:
    for setting in (one for one in SETTINGS if one.kind == "choice"):
        with pytest.raises(dalsegno.InvalidError) as raised:
            limits(tmp_path / "store", **{setting.name: "no such choice"})
        result = set(re.findall(r"`([a-z-]+)`", str(raised.value)))
        assert result == set(setting.allowed)


def test_the_example_of_the_page_opens_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"```toml\n{EXAMPLE}```" in PAGE.read_text(encoding="utf-8")
    (tmp_path / "settings.toml").write_text(EXAMPLE)
    monkeypatch.setenv("DALSEGNO_CONFIG", str(tmp_path / "settings.toml"))
    with dalsegno.open(tmp_path / "store") as store:
        assert store.limits()["capacity_bytes"] == 200 << 30
    assert capsys.readouterr().err == ""
