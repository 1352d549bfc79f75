"""Backup to storage and prefetch from it through SGLang's own tree, controller and host pool.

No model runs. Prompts with random KV are copied to the host pool and backed up by SGLang's threads.
They are prefetched twice: with what the backup left in memory, and after that memory was dropped.
The backends take turns in another order each round. Each starts with an empty directory and an
untimed warm-up of as many other prompts. The bytes of every prompt are compared. The backends:

* `dalsegno`: our backend, every page verified, with as much DRAM of its own (`--dram-mib`) as the
  files of the others may take of the page cache;
* `file`: SGLang's file backend;
* `v1file`: one file per page, moved without a copy through the page cache, on the same interface;
* `sim`: no bytes at all, which shows what SGLang itself takes.

None of them syncs, so none is safe from a power cut. The CPU seconds are those of the
process and of the kernel on its behalf; what the kernel writes back later is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from dalsegno.paths import local_path

__all__ = ["ENVIRONMENT", "SUMMARY", "figures", "main"]

SUMMARY = "backup and prefetch through SGLang's own controller, against file backends"
ENVIRONMENT = "sglang"

ENGINE = "dalsegno_bench.sglang.driver"
PHASES = ("backup", "prefetch", "prefetch_cold")
BASELINE = "v1file"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="dalsegno bench sglang",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--pages", type=int, nargs="+", default=[1, 16, 64], help="page sizes")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each backend")
    parser.add_argument("--sequences", type=int, default=3, help="prompts")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens of a prompt")
    parser.add_argument("--layers", type=int, default=32, help="layers of the model")
    parser.add_argument("--heads", type=int, default=8, help="KV heads")
    parser.add_argument("--head-dim", type=int, default=128, help="numbers of a head, in bfloat16")
    parser.add_argument("--layout", default="page_first", help="layout of the host pool")
    parser.add_argument("--dram-mib", type=int, default=1024, help="DRAM tier of the store")
    parser.add_argument("--capacity-gib", type=int, default=4, help="disk space of the store")
    parser.add_argument("--store", default="{}", help="further settings of the store, as JSON")
    parser.add_argument("--dir", type=local_path, help="where to put the directories")
    return parser.parse_args(argv)


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Puts the rows of one page size together.

    Args:
        rows: One per backend, round and phase: `backend`, `phase`, `gib_per_s`, `cpu_s_per_gib`.

    Returns:
        For each backend its medians by phase, in GiB/s, and `cpu_s_per_gib` by phase; and for each
        phase `PHASE_ratio_v1file`, the median over the rounds of ours against that baseline.
    """
    found: dict[str, Any] = {}
    speeds: dict[tuple[str, str], list[float]] = {}
    costs: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        key = (row["backend"], row["phase"])
        speeds.setdefault(key, []).append(row["gib_per_s"])
        costs.setdefault(key, []).append(row["cpu_s_per_gib"])
    for (backend, phase), values in speeds.items():
        one = found.setdefault(backend, {"cpu_s_per_gib": {}})
        one[phase] = round(statistics.median(values), 3)
        one["cpu_s_per_gib"][phase] = round(statistics.median(costs[backend, phase]), 3)
    for phase in PHASES:
        ours, theirs = speeds.get(("dalsegno", phase)), speeds.get((BASELINE, phase))
        if ours and theirs:
            ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
            found[f"{phase}_ratio_{BASELINE}"] = round(statistics.median(ratios), 2)
    return found


def main(argv: Sequence[str]) -> int:
    """Runs the bench; the last line printed is one JSON object."""
    options = parse(argv)
    with tempfile.TemporaryDirectory(prefix="dalsegno-bench-", dir=options.dir) as folder:
        given = json.dumps({**vars(options), "dir": None, "folder": folder})
        command = [sys.executable, "-W", "ignore", "-m", ENGINE, given]
        print(f"load before: {' '.join(f'{one:.1f}' for one in os.getloadavg())}", flush=True)
        child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if child.returncode != 0:
        print("dalsegno: the bench needs SGLang here, and its bytes right", file=sys.stderr)
        return 1
    measured = json.loads(child.stdout.splitlines()[-1])
    result = {name: figures(rows) for name, rows in measured.items()}
    for name, one in result.items():
        table(name, one)
    load = [round(one, 1) for one in os.getloadavg()]
    print(f"load after: {' '.join(map(str, load))}")
    print(json.dumps({**result, "rounds": options.rounds, "load": load}))
    return 0


def table(name: str, found: Mapping[str, Any]) -> None:
    """Prints the figures of one page size."""
    print(f"\n{name}: GiB/s (CPU s/GiB)")
    print("  " + " ".join([f"{'':10}", *(f"{phase:>16}" for phase in PHASES)]))
    for backend, one in found.items():
        if isinstance(one, dict):
            costs = one["cpu_s_per_gib"]
            cells = [
                f"{one[phase]:7.2f} ({costs[phase]:5.2f})" if phase in one else "-"
                for phase in PHASES
            ]
            print("  " + " ".join([f"{backend:10}", *(f"{cell:>16}" for cell in cells)]))
    ratios = [f"{found[f'{phase}_ratio_{BASELINE}']:.2f} x" for phase in PHASES]
    print("  " + " ".join([f"{'ratio':10}", *(f"{ratio:>16}" for ratio in ratios)]))
