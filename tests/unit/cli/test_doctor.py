"""``dalsegno far doctor`` over real directories."""

from __future__ import annotations

import signal
import time
from functools import partial
from pathlib import Path

import pytest
from tests.unit.stores import Run, start

PROMISES = 7
WAIT_S = 60.0


@pytest.fixture
def far(tmp_path: Path) -> Path:
    (tmp_path / "far").mkdir()
    return tmp_path / "far"


def test_a_local_directory_is_safe_and_stays_empty(far: Path, run: Run) -> None:
    answer = run("far", "doctor", far, "--seconds", 2, "--json")
    assert answer.code == 0
    found = answer.json()
    assert found["is_safe"]
    assert [row["verdict"] for row in found["promises"]] == ["holds"] * PROMISES
    assert [row["far_workers"] for row in found["bandwidth"]] == [1, 2, 4, 8, 16, 32, 64]
    for row in found["bandwidth"]:
        assert row["read_bytes_per_s"] > 0
        assert row["publish_bytes_per_s"] > 0
    assert [row["bytes"] for row in found["latency"]] == [4096, 1 << 20]
    assert all(0 < row["p50_us"] <= row["p99_us"] for row in found["latency"])
    assert 0 < found["written_bytes"] <= 2 << 30
    assert found["left_behind"] == 0
    assert any("--other" in one["action"] for one in found["advice"])
    assert list(far.iterdir()) == []


def test_tables_say_what_was_seen(far: Path, run: Run) -> None:
    answer = run("far", "doctor", far, "--other", far, "--seconds", 2)
    assert answer.code == 0
    for words in ("direct I/O", "a new object becomes visible", "far_workers", "p99"):
        assert words in answer.out
    assert answer.out.splitlines()[-1] == "safe"
    assert "--other" not in answer.out


def test_two_different_directories_are_unsafe(far: Path, run: Run, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    started = time.monotonic()
    answer = run("far", "doctor", far, "--other", tmp_path / "other", "--seconds", 2)
    assert time.monotonic() - started < WAIT_S
    assert answer.code == 1
    assert "a catalog was not visible" in answer.out
    assert "check that both directories are the same one" in answer.out
    assert answer.out.splitlines()[-1] == "unsafe"
    assert list(far.iterdir()) == []


def test_ctrl_c_removes_what_was_written(far: Path) -> None:
    # A shell starts what runs in its background with SIGINT ignored, and children inherit that.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with start("far", "doctor", far, "--seconds", 60, preexec_fn=heard) as process:
        until = time.monotonic() + WAIT_S
        while not list(far.glob("*/*")):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    assert list(far.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [(("--seconds", 1), "it must be 2 to 600"), (("--other", "/no/such"), "/no/such")],
)
def test_a_wrong_argument_is_refused(
    far: Path, run: Run, options: tuple[object, ...], words: str
) -> None:
    answer = run("far", "doctor", far, *options)
    assert answer.code == 2
    assert words in answer.err


def test_a_store_is_refused_and_untouched(path: Path, run: Run) -> None:
    before = sorted(path.rglob("*"))
    answer = run("far", "doctor", path)
    assert answer.code == 2
    assert "holds a store" in answer.err
    assert sorted(path.rglob("*")) == before
