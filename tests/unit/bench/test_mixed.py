"""`dalsegno bench mixed`: contenders, saves that are pending, a small run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dalsegno_bench.disk import contenders, mixed


class Instant:
    """Saves and loads at once."""

    def __init__(self, *, loses: bool = False) -> None:
        """Loses saves, or does not."""
        self._loses = loses
        self.said: list[str] = []

    def save(self, number: int) -> Callable[[], bool]:
        """Saves nothing."""
        return lambda: number >= 0 and not self._loses

    def load(self) -> None:
        """Loads nothing."""

    def prepare(self) -> None:
        """Has nothing to prepare."""

    def say(self, phase: str, slack_s: float = 0.0, steps: Sequence[float] = ()) -> None:
        """Remembers it."""
        del slack_s, steps
        self.said.append(phase)

    def close(self) -> None:
        """Ends nothing."""


@pytest.mark.parametrize("loses", [False, True])
def test_saves_are_pending_until_the_part_ends(*, loses: bool) -> None:
    contender = Instant(loses=loses)
    with mixed.saving(contender) as landed:
        contender.say("decode")
    assert contender.said == ["decode", "idle"]
    assert landed.seconds > 0
    assert (landed.lost > 0) is loses


def test_saves_of_the_bound_follow_each_other() -> None:
    class Counting(Instant):
        """Counts the saves that are pending."""

        pending = most = 0

        def save(self, number: int) -> Callable[[], bool]:
            del number
            self.pending += 1
            self.most = max(self.most, self.pending)

            def wait() -> bool:
                self.pending -= 1
                return True

            return wait

    contender = Counting()
    assert mixed.one_at_a_time(contender, 0.05) > 0
    assert contender.most == 1
    assert "prefill" not in contender.said


def test_a_part_is_measured_beside_itself_without_saves() -> None:
    contender, one = Instant(), mixed.Measured()
    mixed.run_part("prefill", contender, mixed.Compute(), 0.1, one)
    assert one.ratios[0] > 0
    assert one.noise[0] > 0
    assert set(contender.said) == {"prefill", "idle"}


@pytest.mark.parametrize("name", ["ours", "files"])
def test_a_contender_loads_what_it_has_saved(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contenders, "READ_BLOCKS", contenders.LOAD_BLOCKS)
    made: contenders.Contender = (
        contenders.Files(tmp_path / "kv")
        if name == "files"
        else contenders.Ours(tmp_path / "kv", contenders.Speech.ALL)
    )
    try:
        assert made.save(1)()
        made.load()
        made.say("prefill", slack_s=0.1)
        made.say("idle")
    finally:
        made.close()


def test_a_small_run_prints_its_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(contenders, "READ_BLOCKS", contenders.LOAD_BLOCKS)
    options = ["--rounds", "1", "--seconds", "0.1", "--only", "decode", "--dir", str(tmp_path)]
    assert mixed.main(options) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(result["decode"]) == {"ours", "reads_first", "fifo"}
    assert result["save_bound_s"] > mixed.PATIENCE_S
    assert not list(tmp_path.iterdir())
