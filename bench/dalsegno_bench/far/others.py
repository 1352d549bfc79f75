"""Stores of others in buckets, next to ours on the same server, each with objects of its own size.

The server is versitygw. One process puts and another one gets. A put ends when another host could
have its blocks. What a call copies for the bench is measured too, the same for each store.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

from dalsegno_bench.far.metadata import CALL_S, ROOT, files_in
from dalsegno_bench.far.places import NoPlaceError
from dalsegno_bench.faultbench import stores
from dalsegno_bench.faultbench.blocks import HIT, batches, names
from dalsegno_bench.faultbench.remote import Origin
from dalsegno_bench.object_store import servers

__all__ = ["measure"]

# Of a model with 8 billion parameters.
TOKEN_BYTES = 128 << 10
# Tokens of a block, or of a chunk, as each store has them by default.
TOKENS = {"dalsegno-bucket": 16, "vllm-obj": 16, "lmcache-s3": 256}
BATCH_BYTES = 128 << 20


def interpreters() -> list[Path]:
    """Returns the interpreters of the environments that can have these stores."""
    found = (ROOT / ".envs" / name / "bin" / "python" for name in ("vllm-nixl", "lmcache"))
    return [one for one in found if one.exists()]


def measure(rounds: int, round_bytes: int, pythons: Sequence[str]) -> dict[str, Any]:
    """Measures each store that is installed; the others are listed as absent.

    Args:
        rounds: How often each is measured, in an order that changes.
        round_bytes: Bytes of each round.
        pythons: Interpreters of environments with these stores.

    Raises:
        NoPlaceError: There is no server.
    """
    if lacking := servers.missing("versitygw"):
        raise NoPlaceError(lacking)
    speeds: dict[tuple[str, str], list[float]] = defaultdict(list)
    objects: dict[str, int] = {}
    placed = stores.placed([stores.find(name) for name in TOKENS], pythons)
    with (
        servers.buckets_as_files() as (bucket, fs),
        patch.dict(os.environ, bucket.environment()),
        tempfile.TemporaryDirectory() as messages,
        ExitStack() as opened,
    ):
        origins = {}
        for one in placed:
            if not one.absent:
                log = Path(messages) / one.known.name
                origin = Origin(one.python, one.known.adapter, log)
                opened.callback(origin.close)
                origins[one.known.name] = origin
        for number in range(rounds):
            for name in random.sample(list(origins), len(origins)):
                folder = fs.a / f"{name}-{number}"
                folder.mkdir()
                for call, speed in _moved(origins[name], name, folder, round_bytes).items():
                    speeds[name, call].append(speed)
                objects[name] = files_in(folder)
    rows = [
        {
            "store": name,
            "block_tokens": TOKENS[name],
            "objects_per_gb": round(objects[name] / round_bytes * 1e9, 1),
            "put_gb_per_s": _middle(speeds[name, "put"]),
            "get_gb_per_s": _middle(speeds[name, "timed_get"]),
        }
        for name in origins
    ]
    return {"others": rows, "others_absent": {p.known.name: p.absent for p in placed if p.absent}}


def _middle(speeds: Sequence[float]) -> float:
    return round(statistics.median(speeds), 3)


def _moved(origin: Origin, name: str, folder: Path, total: int) -> dict[str, float]:
    """Puts and gets blocks in a process each; returns GB/s by call."""
    block_bytes = TOKENS[name] * TOKEN_BYTES
    parts = batches(names(folder.name, total // block_bytes), BATCH_BYTES // block_bytes)
    speeds = {}
    for call in ("put", "timed_get"):
        host = origin.fork()
        host.call("open", str(folder), 2 * total, block_bytes, limit_s=CALL_S)
        host.call("settle", limit_s=CALL_S)
        seconds = 0.0
        for part in parts:
            # An engine asks before it gets.
            host.call("exists", part, limit_s=CALL_S)
            outcome, took = host.call(call, part, limit_s=CALL_S)
            if any(one not in (True, HIT) for one in outcome):
                raise RuntimeError(f"{name} lost blocks of a {call}")
            seconds += took
        host.end()
        speeds[call] = total / 1e9 / seconds
    return speeds
