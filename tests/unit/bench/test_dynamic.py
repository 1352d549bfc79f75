"""`dalsegno bench dynamic`: figures of made-up turns, the kernel's tables, images, a small run."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dalsegno_bench.dynamic import backends, dynamic
from dalsegno_bench.dynamic.report import broke, result_of, tables
from dalsegno_bench.dynamic.served import Process, Served, Server, Setup
from dalsegno_bench.dynamic.turns import Scale, Turn, figures, spread
from dalsegno_bench.machine import image, kernel
from dalsegno_bench.workload import Dynamic, Prompt
from dalsegno_bench.workload.prefill import PREFILLS

MIB = 1 << 20
PLAN = Dynamic(1024, 256, requests=2, warmup_prompts=3, expected=(0.5, 0.25))
# 1 MiB blocks: 24 times smaller than 256 tokens of 96 KiB.
SCALE = Scale(PLAN, MIB, PREFILLS["qwen3-30b-a3b/h20"])


def turn(stage: int, hits: list[int], *, failed: int = 0, system: str = "files") -> Turn:
    """Loads that took 10 ms a block; 2 CPU seconds."""
    served = Served(
        hit_blocks=hits,
        load_s=[0.01 * hit for hit in hits],
        save_s=0.5,
        saved_blocks=sum(4 - hit for hit in hits),
        failed_blocks=failed,
        user_s=0.5,
        system_s=1.5,
        rss_bytes=stage * MIB,
        disk_bytes=stage * 10 * MIB,
    )
    return Turn(
        system=system,
        stage=stage,
        expected=(0.0, 0.5, 0.25)[stage],
        ideal_blocks=(0, 4, 2)[stage],
        served=served,
        files=stage * 100,
        inodes=stage * 101,
        names_bytes=None if stage == 2 else MIB,
        slab_bytes=-MIB,
    )


def test_figures_are_sums_over_stages_and_the_last_state() -> None:
    found = figures([turn(1, [2, 2]), turn(2, [1, 0], failed=3)], SCALE)
    prefills = [SCALE.prefill.seconds(1024, hit * 256) * 1e3 for hit in (2, 2, 1, 0)]
    loads = [20.0, 20.0, 10.0, 0.0]
    assert SCALE.shrunk == 24
    ttft = found["ttft_ms"]["mean"]
    assert ttft == pytest.approx(sum(prefills) / 4 + sum(loads) / 4, abs=0.01)
    assert found["full_ms"]["mean"] - found["prefill_ms"]["mean"] == pytest.approx(300, abs=0.02)
    assert found["prefill_ms"]["p99"] == pytest.approx(prefills[3], abs=0.01)
    expected = {
        "hit_rate": 0.3125,
        "ideal_hit_rate": 0.375,
        "load_s": 0.05,
        "save_s": 1.0,
        # 5 blocks loaded, 8 of 11 saved, each 1 MiB.
        "moved_gb": round(13 * MIB / 1e9, 3),
        "user_s": 1.0,
        "system_s": 3.0,
        "cpu_s_per_gb": round(4 / (13 * MIB / 1e9), 3),
        "failed_blocks": 3,
        "wrong_blocks": 0,
        "files": 200,
        "inodes": 202,
        "names_mib": None,
        "slab_mib": -1.0,
        "rss_mib": 2.0,
        "disk_mib": 20.0,
    }
    assert {name: found[name] for name in expected} == expected


def test_percentiles_are_values_that_occurred() -> None:
    assert spread([0.003, 0.001, 0.002]) == {"mean": 2.0, "p50": 2.0, "p99": 3.0}
    assert spread([n / 1000 for n in range(1, 201)]) == {"mean": 100.5, "p50": 100.0, "p99": 198.0}


@pytest.mark.parametrize(
    ("hits", "failed", "stage", "parts", "words"),
    [
        ([[2, 2], [1, 1]], [0, 0], None, (1.0, None), "wrote everything; 100.0% of the ideal"),
        ([[2, 2], [1, 0]], [7, 9], 1, (None, 0.5), "from stage 1 on; none of the ideal hits bef"),
        ([[2, 1], [0, 0]], [0, 9], 2, (0.75, None), "from stage 2 on; 75.0% of the ideal hits b"),
    ],
)
def test_the_stage_in_which_a_backend_failed_is_reported(
    hits: list[list[int]],
    failed: list[int],
    stage: int | None,
    parts: tuple[float | None, float | None],
    words: str,
) -> None:
    turns = [turn(0, [0, 0, 0])]
    turns += [turn(n, h, failed=f) for n, (h, f) in enumerate(zip(hits, failed, strict=True), 1)]
    turns += [turn(1, [0, 0], failed=1, system="another")]
    found = broke(turns, SCALE, "files")
    assert (found["stage"], (found["before"], found["after"])) == (stage, parts)
    assert words in found["text"]


def test_the_tables_have_a_row_for_every_turn_and_one_for_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    turns = [
        turn(stage, hits, system=system)
        for stage, hits in enumerate([[0, 0, 0], [2, 2], [1, 0]])
        for system in ("memory", "files")
    ]
    tables("what was run", turns, SCALE)
    output = capsys.readouterr().out
    rows = re.findall(
        r"^(warm-up|\d[ \w]*?) +(memory|files) +([\d.]+)% +([\d.]+)%", output, re.MULTILINE
    )
    assert rows[:4] == [
        ("warm-up", "memory", "0.0", "0.0"),
        ("warm-up", "files", "0.0", "0.0"),
        ("1", "memory", "50.0", "50.0"),
        ("1", "files", "50.0", "50.0"),
    ]
    # The warm-up is not counted.
    assert rows[6:] == [("1 to 10", name, "37.5", "31.2") for name in ("memory", "files")]
    result = result_of(turns, SCALE)
    assert [one["stage"] for one in result["systems"]["files"]["stages"]] == [0, 1, 2]
    assert json.loads(json.dumps(result)) == result


def test_the_kernels_tables_are_read() -> None:
    slabs = "slabinfo - version: 2.1\n# name ...\n"
    slabs += (
        "ext4_inode_cache 10 20 1000 3 4 : x\nxfs_inode 1 1 500 1 1 : x\ndentry 5 9 200 2 1 :\n"
    )
    slabs += "kmalloc-64 7 7 64 1 1 : x\next4_inode_caches 7 7 64 1 1 : x\n"
    assert kernel.names_of_slabinfo(slabs) == 20 * 1000 + 500 + 9 * 200
    meminfo = "MemTotal: 7 kB\nSReclaimable:  30 kB\nSUnreclaim:  12 kB\nSlab: 42 kB\n"
    assert kernel.slab_of_meminfo(meminfo) == 42 << 10


def test_the_machine_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("x", "a/y", "a/b/z"):
        (tmp_path / name).touch()
    (tmp_path / "loop").symlink_to(tmp_path)
    assert kernel.count_files(tmp_path) == 4
    monkeypatch.setattr(kernel, "SLABINFO", tmp_path / "absent")
    seen = kernel.look(tmp_path)
    assert seen.names_bytes is None
    assert seen.slab_bytes > 0


class Forgetful:
    """A backend that has all blocks, the third of them wrong."""

    def load(self, chain: list[bytes], out: list[memoryview]) -> int:
        for name, buffer in zip(chain, out, strict=True):
            buffer[:32] = name
        out[2][:32] = bytes(32)
        return len(chain)

    def save(self, chain: list[bytes], blocks: list[memoryview], first: int) -> int:
        assert (first, len(blocks)) == (len(chain), 0)
        return 0

    def disk_bytes(self) -> int:
        return 5


def test_a_wrong_block_is_counted() -> None:
    setup = Setup("fake", Path("nowhere"), 64, 4, 0, 0)
    result: list[int] = []
    prompts = [Prompt(bytes(range(128)), 4)] * 7
    served = Server(Forgetful(), setup).serve(prompts, result.append)  # type: ignore[arg-type]
    assert (served.wrong_blocks, served.hit_blocks, result) == (7, [4] * 7, [5, 2])
    assert served.disk_bytes == 5


def test_an_error_of_a_backend_process_reaches_the_bench(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"files: ValueError.*whole sectors"):
        Process(Setup("files", tmp_path / "files", 5000, 4, MIB, MIB))


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Stands in for the system's tools; records what is run, `mount` fails."""
    ran: list[list[str]] = []

    def fake(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        failed = Path(command[0]).name == "mount"
        return subprocess.CompletedProcess(command, int(failed), "", "no loop devices\n")

    monkeypatch.setattr(subprocess, "run", fake)
    return ran


def test_an_image_that_cannot_be_mounted_leaves_no_file(
    tools: list[list[str]], tmp_path: Path
) -> None:
    with (
        pytest.raises(image.NoImageError, match="mount: no loop devices"),
        image.mounted(tmp_path / "x", MIB),
    ):
        raise AssertionError("not reached")
    assert [Path(command[0]).name for command in tools] == ["mkfs.ext4", "mount"]
    assert list(tmp_path.iterdir()) == []


def test_a_mounted_image_is_removed_after_an_exception(tmp_path: Path) -> None:
    lacking = image.missing()
    if lacking is not None:
        pytest.skip(lacking)
    try:
        with image.mounted(tmp_path / "x", 16 * MIB) as mount:
            assert mount.is_mount()
            assert list(mount.iterdir()) == []
            assert os.statvfs(mount).f_files < os.statvfs(tmp_path).f_files
            raise KeyboardInterrupt  # noqa: TRY301 - what Ctrl-C does
    except image.NoImageError as error:
        pytest.skip(str(error))
    except KeyboardInterrupt:
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_mounted_image_is_removed_while_a_file_in_it_is_open(tmp_path: Path) -> None:
    lacking = image.missing()
    if lacking is not None:
        pytest.skip(lacking)
    try:
        with image.mounted(tmp_path / "x", 16 * MIB) as mount:
            busy = (mount / "busy").open("xb")
    except image.NoImageError as error:
        pytest.skip(str(error))
    assert list(tmp_path.iterdir()) == []
    busy.close()


def test_the_part_that_mounts_reports_why_it_is_skipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert dynamic.main(["--part", "collapse", "--dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2] == "file systems with few inodes: SKIPPED, only root may mount a file system"
    assert json.loads(lines[-1])["collapse"] == {"skipped": "only root may mount a file system"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["disk", "files,files", ""])
def test_unknown_backends_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="choose from memory, files"):
        dynamic._systems(text)


@pytest.mark.slow
def test_a_small_run_hits_what_it_should_and_cleans_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        backends.check_direct(tmp_path)
    except OSError as error:
        pytest.skip(str(error))
    pytest.importorskip("matplotlib")
    arguments = (
        "--part stages --prompts 1024 --requests 2 --kv-bytes-per-token 64 --disk-gib 0.0625"
    )
    picture, directory = tmp_path / "stages.png", tmp_path / "here"
    directory.mkdir()
    arguments += f" --plot {picture} --dir {directory}"
    assert dynamic.main(arguments.split()) == 0
    output = capsys.readouterr().out.splitlines()
    result = json.loads(output[-1])
    assert set(result) == {"bench", "load", "stages"}
    (stages,) = result["stages"]
    assert list(stages["systems"]) == list(dynamic.SYSTEMS)
    for system, found in stages["systems"].items():
        # 216 prompts of 64 KiB fit into every budget.
        assert found["hit_rate"] == found["ideal_hit_rate"] == pytest.approx(0.41, abs=0.01), system
        assert (found["failed_blocks"], found["wrong_blocks"]) == (0, 0)
        assert len(found["stages"]) == 11
    assert stages["systems"]["files"]["files"] > stages["systems"]["dalsegno-lsm"]["files"] > 0
    assert "1536 times smaller than qwen3-30b-a3b's" in output[1]
    assert list(directory.iterdir()) == []
    assert picture.read_bytes().startswith(b"\x89PNG")
