"""`dalsegno bench pool`: what acceptance reads, from made-up samples, and a tiny run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.dose import compiles_a_bench

from dalsegno_bench.pool import filling, zeromq
from dalsegno_bench.pool import pool as bench
from dalsegno_bench.pool.figures import CLIENTS, Figures, Run
from dalsegno_bench.pool.workset import Prompts, hash_of

# The figures that acceptance reads, by part.
KEYS = {
    "calls": {"zmq_ratio", "acquires_s", "slowest_client_share"},
    "reads": {"view_us_512k", "view_sum_vs_tcp_sum", "copy_vs_tcp", "copy_cpu_vs_tcp"},
    "full": {"arena_full", "throttled_share"},
    "scaling": {"scaling"},
}


def sample(seconds: float = 1.0, calls: int = 10, gb: float = 1.0) -> dict[str, Any]:
    """What a client measured: `gb` in so many seconds, with as much CPU time on either side."""
    micros = seconds / calls * 1e6
    return {
        "calls": calls,
        "s": seconds,
        "cpu_s": seconds / 2,
        "server_cpu_s": seconds / 2,
        "bytes": gb * 1e9,
        "p50_us": micros,
        "p99_us": micros,
    }


def figures(parts: tuple[str, ...], ours: list[float], theirs: list[float]) -> Figures:
    """Rounds in which a call of ours took so many seconds, and one of the baseline's."""
    made = Figures()
    for contenders, clients in bench.groups(parts):
        for what in contenders:
            is_ours = what.startswith(("small", "large"))
            for seconds in ours if is_ours else theirs:
                made.runs[what, clients].append(Run([sample(seconds)] * clients, 0.5, 3 << 20))
    return made


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    # A slow round of both changes no ratio.
    made = figures(("calls", "reads"), [1.0, 30.0, 2.0], [4.0, 60.0, 8.0])
    result = json.loads(json.dumps(made.result(blocks=64)))
    assert result["zmq_ratio"] == result["zmq_ratios"]["probe"] == 4.0
    assert result["copy_vs_tcp"] == result["view_sum_vs_tcp_sum"] == 4.0
    # A client and a server spend half a second for each second; eight clients share a server.
    assert result["copy_cpu_vs_tcp"] == 0.25
    assert result["view_us_512k"] == round(2.0 / 10 / 64 * 1e6, 2)
    assert result["acquires_s"] == 8 * 10 // 2
    assert result["slowest_client_share"] == 1.0
    assert "scaling" not in result


def test_the_worse_of_two_ratios_counts() -> None:
    made = figures(("calls", "reads"), [1.0], [8.0])
    made.runs["zmq probe", 1] = [Run([sample(6.0)])]
    made.runs["tcp copy", 8] = [Run([sample(3.0)] * 8)]
    result = made.result(blocks=64)
    assert (result["zmq_ratio"], result["copy_vs_tcp"]) == (6.0, 3.0)
    assert result["copy_cpu_vs_tcp"] == round(1 / 3, 3)


def test_the_slowest_client_is_compared_with_the_mean() -> None:
    run = Run([sample(calls=10), sample(calls=30)])
    assert run.slowest_share == 0.5


def test_scaling_has_a_row_for_each_contender_and_number_of_clients() -> None:
    rows = figures(("scaling",), [1.0], [2.0]).result(blocks=64)["scaling"]
    assert [row["clients"] for row in rows] == [n for n in CLIENTS for _ in range(3)]
    assert {row["contender"] for row in rows} == {"shared pool", "store per client", "tcp"}
    assert rows[-3] == {
        "contender": "shared pool",
        "clients": 8,
        "hit_rate": 0.5,
        "dram_mib": 3,
        "gb_per_s": 8.0,
        "cpu_s_per_gb": 0.5625,
    }


def test_no_part_measures_anything_twice() -> None:
    pairs = [(what, n) for contenders, n in bench.groups(bench.PARTS) for what in contenders]
    assert len(pairs) == len(set(pairs))
    assert bench.groups(["full"]) == []


def test_the_baseline_counts_who_holds_a_block() -> None:
    directory = zeromq.Directory(3)
    chain = [hash_of(number) for number in range(5)]
    assert directory.probe(chain) == 3
    first, found = directory.acquire(chain)
    second, _ = directory.acquire(chain[:1])
    assert [entry[4] for entry in found] == [0, 1, 2]
    assert [entry[5] for entry in directory.table.values()] == [2, 1, 1]
    directory.release(first)
    directory.release(second)
    assert [entry[5] for entry in directory.table.values()] == [0, 0, 0]


def test_weights_turn_around_and_back() -> None:
    first, second = filling.weights(0), filling.weights(filling.SHIFT_PUTS)
    assert first == second[::-1] != second
    assert filling.weights(2 * filling.SHIFT_PUTS) == first
    assert len(first) == len(filling.SIZES_KIB) == 9


def test_prompts_have_blocks_of_their_own() -> None:
    prompts = Prompts(2, 3, 4)
    (first, blocks), (second, _) = [
        (chain, [bytes(block) for block in blocks]) for chain, blocks in prompts.contents()
    ]
    assert blocks == [bytes([number]) * 4 for number in range(3)]
    assert len(set(first + second)) == 6
    assert second == prompts.chain(1)


@compiles_a_bench
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cargo") is None, reason="the bench compiles a program")
def test_a_tiny_run_has_every_figure_and_leaves_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["--quick", "--rounds", "1", "--dir", str(tmp_path)]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set().union(*KEYS.values()) <= result.keys()
    assert 0.5 < result["arena_full"] <= 1
    hits = {row["hit_rate"] for row in result["scaling"] if row["contender"] == "shared pool"}
    assert hits == {1.0}
    assert all(row["gb_per_s"] > 0 for row in result["scaling"])
    assert list(tmp_path.iterdir()) == []


@compiles_a_bench
@pytest.mark.skipif(shutil.which("cargo") is None, reason="the bench compiles a program")
def test_one_part_has_its_own_figures_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--quick", "--only", "full", "--dir", str(tmp_path)]
    assert bench.main(arguments) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert KEYS["full"] <= result.keys()
    assert not (KEYS["calls"] | KEYS["reads"] | KEYS["scaling"]) & result.keys()
