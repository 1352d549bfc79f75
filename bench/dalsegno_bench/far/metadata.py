"""Files and operations per GB: ours next to the file tiers of vLLM and LMCache.

All stores put the same number of blocks at one node, and a fresh process gets them at the other.
Both bricks of the private GlusterFS count what they serve. All operations but reads and writes are
about names, attributes, locks and syncs. Both bricks serve each change, and a replicated volume
adds locks and attributes of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dalsegno_bench.far.node import BLOCK_BYTES, PACK_BYTES, PUT_BLOCKS, WARM_PACKS, chains
from dalsegno_bench.far.places import DATA, Place
from dalsegno_bench.faultbench import stores
from dalsegno_bench.faultbench.blocks import HIT
from dalsegno_bench.faultbench.remote import Origin

__all__ = ["CALL_S", "ROOT", "files_in", "interpreters", "measure", "row"]

OTHERS = ("vllm-fs", "lmcache-fs-native")
ROOT = Path(__file__).resolve().parents[3]
CALL_S = 120.0
WORKERS = 32


def interpreters() -> list[Path]:
    """Returns the interpreters of the environments in this checkout."""
    return sorted(ROOT.glob(".envs/*/bin/python"))


def row(
    store: str, files: int, moved: dict[str, int], operations: dict[str, Counter[str]]
) -> dict[str, Any]:
    """Makes the row of a store.

    Args:
        store: Its name.
        files: Its files.
        moved: Bytes of blocks by direction, ``put`` and ``get``.
        operations: What the bricks served meanwhile, by direction.
    """
    made: dict[str, Any] = {"store": store, "files_per_gb": round(files / moved["put"] * 1e9, 1)}
    for direction, counted in operations.items():
        per_gb = {name: count / moved[direction] * 1e9 for name, count in counted.items()}
        metadata = sum(count for name, count in per_gb.items() if name not in DATA)
        made[f"{direction}_metadata_per_gb"] = round(metadata)
        made[f"{direction}_data_per_gb"] = round(sum(per_gb.values()) - metadata)
        top = sorted((one for one in per_gb if one not in DATA), key=lambda one: -per_gb[one])
        made[f"{direction}_operations"] = {name: round(per_gb[name]) for name in top[:6]}
    return made


def measure(place: Place, local: Path, blocks: int, pythons: Sequence[str]) -> dict[str, Any]:
    """Counts for each store that is installed; the others are listed as absent.

    Args:
        place: The far directory.
        local: Where our store keeps its log.
        blocks: How many blocks each store gets; ours rounds up to whole packs.
        pythons: Interpreters of environments with other stores.
    """
    place.start_counting()
    rows = [_ours(place, local, blocks)]
    absent = {}
    for one in stores.placed([stores.find(name) for name in OTHERS], pythons):
        if one.absent:
            absent[one.known.name] = one.absent
        else:
            rows.append(_other(place, one, blocks))
    return {"metadata": rows, "metadata_absent": absent}


def _counted(place: Place, work: Callable[[], Any]) -> tuple[Counter[str], Any]:
    before = place.operations()
    result = work()
    return place.operations() - before, result


def files_in(folder: Path) -> int:
    """Counts the files of a folder."""
    return sum(len(names) for _, _, names in os.walk(folder))


def _ours(place: Place, local: Path, blocks: int) -> dict[str, Any]:
    at_a, at_b = place.folder("metadata-ours")
    packs = max(1, blocks * BLOCK_BYTES // PACK_BYTES)

    def node(mode: str, far: Path) -> int:
        words = [f"--far={far}", f"--local={local / mode}", f"--name={far.name}"]
        words += [f"--packs={packs}", f"--workers={WORKERS}"]
        command = [sys.executable, "-m", "dalsegno_bench.far.node", mode, *words]
        return subprocess.run(command, capture_output=True, check=True).returncode

    puts, _ = _counted(place, lambda: node("write", at_a))
    gets, _ = _counted(place, lambda: node("read", at_b))
    files = files_in(at_a)
    place.remove("metadata-ours")
    put_bytes, get_bytes = ((packs + more) * PACK_BYTES for more in (WARM_PACKS, 0))
    return row("dalsegno", files, {"put": put_bytes, "get": get_bytes}, {"put": puts, "get": gets})


def _other(place: Place, placed: stores.Placed, blocks: int) -> dict[str, Any]:
    name = f"metadata-{placed.known.name}"
    at_a, at_b = place.folder(name)
    parts = list(chains(name, blocks, PUT_BLOCKS))
    with tempfile.TemporaryDirectory() as messages:
        origin = Origin(placed.python, placed.known.adapter, Path(messages) / "log")
        try:
            puts, _ = _counted(place, lambda: _run(origin, at_a, "put", parts))
            files = files_in(at_a)
            gets, answers = _counted(place, lambda: _run(origin, at_b, "get", parts))
        finally:
            origin.close()
    assert all(verdict == HIT for one in answers for verdict in one), "blocks were lost"
    place.remove(name)
    moved = blocks * BLOCK_BYTES
    return row(placed.known.name, files, {"put": moved, "get": moved}, {"put": puts, "get": gets})


def _run(origin: Origin, folder: Path, call: str, parts: Sequence[Sequence[bytes]]) -> list[Any]:
    """Opens a store in a process of its own, and makes a call for each part."""
    host = origin.fork()
    capacity = 4 * sum(map(len, parts)) * BLOCK_BYTES
    host.call("open", str(folder), capacity, BLOCK_BYTES, limit_s=CALL_S)
    answers = []
    for part in parts:
        # An engine asks before it gets.
        if call == "get":
            host.call("exists", part, limit_s=CALL_S)
        answers.append(host.call(call, part, limit_s=CALL_S))
    host.end()
    return answers
