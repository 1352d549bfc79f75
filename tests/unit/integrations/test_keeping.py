"""Which blocks are not written to the disk."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dalsegno.integrations.common import keeping
from dalsegno.integrations.common.deciding import FEW_STEPS, Engine, LoadDecider
from dalsegno.integrations.common.keeping import SaveDecider
from dalsegno.integrations.common.settings import StoreSettings
from dalsegno.integrations.common.steps import StepTime, StepWork
from dalsegno.profiles import ComputePrior, Profile

MIB = 1 << 20
# 1,024 tokens have 64 MiB, and take 10 ms: 6.4 GiB/s to break even.
ENGINE = Engine(layers=32, block_bytes=MIB, block_tokens=16, chunk=512)
PRIOR = ComputePrior(step_s=1e-9, token_s=1e-5, pair_s=1e-15, read_s=1e-15)
SETTINGS = StoreSettings(path=Path("/store"))
NOWHERE = Path("/nonexistent/profiles")
SLOW, FAST = (1e-3, 100 * MIB), (1e-3, 1024 * MIB)


def kind(store: str = "/store", **other: str) -> dict[str, str]:
    """What makes engines of one kind."""
    return {"model": "m", "store": store, "block_bytes": str(MIB), "block_tokens": "16"} | other


class Rig:
    """An engine with a disk of a given speed, and a clock that is set by hand."""

    def __init__(self, place: Path | None = NOWHERE, disk: Any = SLOW, **how: Any) -> None:
        self.now, self.probes, self.disk = 0.0, 0, disk
        store = how.pop("store", "/store")
        profile = Profile(kind(store), PRIOR, place, {"log": SLOW})
        self.loads = LoadDecider(SETTINGS, ENGINE, profile)
        self.saves = SaveDecider(
            how.pop("min_gain", 0.05),
            self.loads,
            lambda: bool(how.get("has_far")),
            now=lambda: self.now,
            measure=self.measure,
        )

    def measure(self, folder: Path) -> Any:
        assert folder == Path("/store")
        self.probes += 1
        return self.disk

    def learn(self) -> None:
        """Measures some steps."""
        for _ in range(FEW_STEPS):
            self.loads.note_step(StepTime(StepWork(512, 131072, 512), 5.12e-3))

    def writes(self, tokens: int = 1024) -> bool:
        """Asks until no probe runs."""
        answer = self.saves.writes(tokens)
        until = time.monotonic() + 10
        while any(one.name == "dalsegno-probe" for one in threading.enumerate()):
            assert time.monotonic() < until
            time.sleep(0.001)
        return answer

    def settle(self) -> None:
        """Asks until the disk was probed, and then the profiles of others were read."""
        self.writes()
        self.writes()


def test_nothing_is_declined_before_steps_and_the_disk_were_measured() -> None:
    rig = Rig()
    assert rig.writes()
    assert rig.probes == 0
    rig.learn()
    assert rig.writes()
    assert rig.probes == 1
    # Until the profiles of others are read.
    assert rig.writes()
    assert not rig.writes()
    reason = rig.loads.profile.notes["saves_declined"]
    assert reason["tokens"] == 1024
    assert reason["loaded_s"] > 20 * reason["computed_s"]


def test_a_disk_that_became_fast_is_found() -> None:
    rig = Rig()
    rig.learn()
    rig.settle()
    assert not rig.writes()
    rig.disk = FAST
    assert not rig.writes()
    rig.now += keeping.PROBE_S
    # Until the probe has ended, and after it.
    assert rig.writes()
    assert rig.writes()
    assert rig.probes == 2
    # What is old counts no longer.
    rig.disk = SLOW
    rig.now += 2 * keeping.PROBE_S
    assert rig.writes()
    rig.settle()
    assert not rig.writes()


def test_loads_that_were_faster_than_the_probe_count() -> None:
    rig = Rig()
    rig.learn()
    rig.settle()
    assert not rig.writes()
    for number in range(20):
        rig.loads.begin_load(number, [("log", 64)], 64)
        rig.loads.end_load(number, 0.06, is_whole=True)
    assert rig.writes()


@pytest.mark.parametrize(
    "how", [{"has_far": True}, {"min_gain": 0.0}, {"disk": None}, {"place": None}]
)
def test_everything_is_written_if_nobody_can_know(how: dict[str, Any]) -> None:
    rig = Rig(**how)
    rig.learn()
    assert all(rig.writes() for _ in range(3))


def test_the_disk_of_a_server_is_known_by_loads() -> None:
    rig = Rig(store="unix:/run/dalsegno.sock")
    rig.learn()
    for number in range(keeping.FEW_LOADS):
        assert rig.writes()
        rig.loads.begin_load(number, [("log", 64)], 64)
        rig.loads.end_load(number, 0.7, is_whole=True)
    rig.settle()
    assert not rig.writes()
    assert rig.probes == 0


@pytest.mark.parametrize(
    ("other", "token_s", "is_written"),
    [
        (kind(engine="slow"), 1e-2, True),
        (kind(engine="fast"), 1e-6, False),
        (kind(engine="slow", model="n"), 1e-2, False),
        (kind("/elsewhere", engine="slow"), 1e-2, False),
    ],
)
def test_a_slower_engine_of_the_store_keeps_its_blocks(
    tmp_path: Path, other: dict[str, str], token_s: float, *, is_written: bool
) -> None:
    theirs = Profile(other, ComputePrior(1e-9, token_s, 1e-15, 1e-15), tmp_path)
    theirs.save(theirs.model())
    (tmp_path / "damaged.json").write_text(json.dumps({"version": 1}))
    rig = Rig(tmp_path)
    rig.learn()
    rig.settle()
    assert rig.writes() == is_written
