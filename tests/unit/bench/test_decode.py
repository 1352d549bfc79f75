"""`dalsegno bench decode`: saves that are pending, ratios, the store of a server."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from dalsegno_bench.pool.processes import serving
from dalsegno_bench.vllm import decode


class Counting:
    """Saves at once, and counts the saves that are pending."""

    def __init__(self, *, loses: bool = False) -> None:
        """Loses saves, or does not."""
        self._loses, self.numbers = loses, list[int]()
        self.pending = self.most = 0

    def save(self, number: int) -> Callable[[], bool]:
        """Saves nothing."""
        self.numbers.append(number)
        self.pending += 1
        self.most = max(self.most, self.pending)

        def wait() -> bool:
            self.pending -= 1
            return not self._loses

        return wait


class Steps:
    """An engine whose steps take so long while blocks are saved, and a tenth of a second else."""

    def __init__(self, beside: list[float]) -> None:
        """Has given these times."""
        self._beside = [[0.1] * 100, beside, [0.1] * 50 + [0.2] * 50]

    def steps_during(self, work: Callable[[], None]) -> list[float]:
        """Decodes while something is done."""
        work()
        return self._beside.pop(0)


@pytest.mark.parametrize("loses", [False, True])
def test_some_saves_are_pending_and_all_are_waited_for(*, loses: bool) -> None:
    saver = Counting(loses=loses)
    assert decode.save_all(saver, 7, 20) == (20 if loses else 0)
    assert saver.numbers == list(range(7, 27))
    assert (saver.pending, saver.most) == (0, decode.PENDING)


def test_steps_beside_saves_are_compared_with_those_before_and_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decode, "QUIET_S", 0.0)
    engine = Steps([0.15] * 100)
    row = decode.measured(engine, Counting(), 0, 3)  # type: ignore[arg-type]
    assert row["p50"] == pytest.approx(1.5)
    assert row["p99"] == pytest.approx(0.75)
    assert row["p99_a_a"] == pytest.approx(2.0)
    assert row["lost"] == 0
    assert row["saved_mb_per_s"] > 0


def test_blocks_are_saved_into_the_store_of_a_server() -> None:
    # A socket has a short path.
    with (
        tempfile.TemporaryDirectory(prefix="dalsegno-") as folder,
        serving(Path(folder) / "store", 64 << 20, 256 << 20) as (_, path),
    ):
        assert decode.save_all(decode.Served(path), 0, 2) == 0
