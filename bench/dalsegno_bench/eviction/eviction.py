"""Eviction on recorded requests: hit rates of the real store against those of an LRU of blocks.

Each request of a trace gets the leading blocks of its chain and puts the others, as an engine does.
The store has space for a share of the trace's distinct blocks. Blocks are small, so that a whole
trace takes minutes at most. What matters for eviction stays in proportion: at least 64 segments of
at least 32 blocks, and extents of four blocks, which is what 32 MiB hold of a model with 128 KiB a
token and blocks of 64 tokens. The hit rate is tokens of leading blocks over prompt tokens, over the
last half of the requests. The LRU has space for as many blocks as the store held on average in that
half, so neither headers nor the segments that the store keeps free count against the store.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dalsegno
from dalsegno.stats import Stats
from dalsegno_bench.disk.log import aligned
from dalsegno_bench.workload import Lru, Trace, read_trace

__all__ = ["SUMMARY", "Geometry", "geometry_of", "main", "report"]

SUMMARY = "hit rates on recorded requests against an LRU of blocks, and bytes relocated for them"

MIB = 1 << 20
HEADER_BYTES = 4096
# Least of the two, for eviction to have a choice.
SEGMENTS = 64
SEGMENT_BLOCKS = 32
SHARES = (0.05, 0.10, 0.25)
DATA = Path("../shared/data")
TRACES = (
    "mooncake_conversation_trace.jsonl.xz",
    "mooncake_synthetic_trace.jsonl.xz",
    "leval_shuffled_blk64.jsonl.xz",
    "kvct_mux16_first3000_blk64.jsonl.xz",
)
# Requests of a few KiB are cheaper with it: half the time of io_uring on two busy cores.
IO_ENGINE = "psync"
# Hits are counted, and syncs of a disk would take most of the time: memory where it can be.
MEMORY = Path("/dev/shm")  # noqa: S108 - the bench makes a folder of its own in it
# Samples of how many blocks the store holds.
SAMPLES = 200
# One in so many of them also counts what can be reached, which asks for every block of the trace.
REACHED = 10
# Blocks of one call that asks what is present.
ASKED_BLOCKS = 8192


@dataclass(frozen=True)
class Geometry:
    """Sizes of a store; byte counts."""

    block: int
    extent: int
    segment: int
    capacity: int


@dataclass
class Replay:
    """What a store did with a trace.

    Attributes:
        hits: Leading blocks loaded, request by request.
        held: Samples of the blocks in the store, over the last half of the requests.
        stats: The store's counters at the end.
        reachable: Of the blocks present, the share whose whole prefix is; one in `REACHED` samples.
        seconds: How long the requests took, and the samples between them.
    """

    hits: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    stats: Stats | None = None
    reachable: list[float] = field(default_factory=list)
    seconds: float = 0.0


def geometry_of(blocks: int, extent_blocks: int) -> Geometry:
    """Sizes of a store for so many blocks: the smallest blocks with enough segments.

    Raises:
        ValueError: Blocks of 32 KiB are too small for so few of them.
    """
    for block in range(4 << 10, (32 << 10) + 1, 1 << 10):
        record = -(-(block * extent_blocks + HEADER_BYTES) // HEADER_BYTES) * HEADER_BYTES
        capacity = -(-blocks * record // extent_blocks)
        # One segment is set aside for small files.
        segment = 1 << (max(1, capacity // (SEGMENTS + 1)).bit_length() - 1)
        # Its header and its seal are sectors of their own.
        whole_records = (segment - 2 * HEADER_BYTES) // record
        if segment >= MIB and whole_records * extent_blocks >= SEGMENT_BLOCKS:
            return Geometry(block, block * extent_blocks, segment, capacity)
    raise ValueError(
        f"a store for {blocks} blocks would have fewer than {SEGMENTS} segments: replay a longer"
        " trace, or a larger --share of it"
    )


def names_of(trace: Trace) -> list[bytes]:
    """A chain hash for each block."""
    return [hashlib.sha256(b"%d" % block).digest() for block in range(trace.blocks)]


def replay(
    trace: Trace, names: Sequence[bytes], store: dalsegno.Store, geometry: Geometry
) -> Replay:
    """Serves all requests, one after the other."""
    namespace = store.namespace({"bench": "eviction"}, layers=1, slice_bytes=geometry.block)
    longest = max(map(len, trace.requests))
    memory = aligned(longest * geometry.block)
    buffers = [memory[i * geometry.block :][: geometry.block] for i in range(longest)]
    done = Replay()
    half = len(trace.requests) // 2
    every = max(1, half // SAMPLES)
    start = time.perf_counter()
    for number, blocks in enumerate(trace.requests):
        chain = [names[block] for block in blocks]
        present = namespace.probe(chain)
        hits = namespace.get_batch(chain[:present], buffers[:present]) if present else 0
        done.hits.append(hits)
        if hits < len(chain):
            namespace.put_batch(chain, buffers[hits : len(chain)], first=hits)
        if number >= half and number % every == 0:
            done.held.append(store.stats()["blocks"])
            if len(done.held) % REACHED == 1:
                done.reachable.append(reachable_share(trace, names, namespace))
    done.seconds = time.perf_counter() - start
    done.stats = store.stats()
    return done


def reachable_share(trace: Trace, names: Sequence[bytes], namespace: dalsegno.Namespace) -> float:
    """Of the blocks that are present, the share whose whole prefix is. Counts as no use."""
    present: list[bool] = []
    for at in range(0, len(names), ASKED_BLOCKS):
        present += namespace.peek(names[at : at + ASKED_BLOCKS])
    whole: list[bool] = []
    for here, parent in zip(present, trace.parents, strict=True):
        whole.append(here and (parent < 0 or whole[parent]))
    return sum(whole) / max(1, sum(present))


def hit_rate(trace: Trace, hits: Sequence[int]) -> float:
    """Tokens of leading blocks over prompt tokens, over the last half of the requests."""
    measured = range(len(hits) // 2, len(hits))
    hit = sum(trace.hit_tokens(request, hits[request]) for request in measured)
    return hit / max(1, sum(trace.input_tokens[request] for request in measured))


def run_cell(
    trace: Trace, names: Sequence[bytes], share: float, options: argparse.Namespace
) -> dict[str, Any]:
    """Replays a trace through a store of its own; returns the figures."""
    geometry = geometry_of(round(share * trace.blocks), options.extent_blocks)
    directory = Path(tempfile.mkdtemp(prefix="dalsegno-bench-", dir=options.dir))
    try:
        with dalsegno.open(
            directory,
            capacity=geometry.capacity,
            segment=geometry.segment,
            extent=geometry.extent,
            dram=0,
            index=options.index,
            merge_rate=options.merge_rate,
            scrub_rate=0,
            io_engine=IO_ENGINE,
        ) as store:
            segments = store.limits()["segment_count"]
            done = replay(trace, names, store, geometry)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    held = round(statistics.fmean(done.held))
    lru: Lru[int] = Lru(held)
    ours = hit_rate(trace, done.hits)
    theirs = hit_rate(trace, [lru.use(blocks) for blocks in trace.requests])
    stats = done.stats
    assert stats is not None, "the replay has ended"
    return {
        "hit_rate": round(ours, 4),
        "lru_hit_rate": round(theirs, 4),
        "hit_vs_lru": round(ours / theirs, 4) if theirs else None,
        "relocated_per_put": round(stats["relocated_bytes"] / max(1, stats["put_bytes"]), 4),
        "merged_per_put": round(stats["merging"]["merged_bytes"] / max(1, stats["put_bytes"]), 4),
        "reachable_of_live": round(statistics.fmean(done.reachable), 4),
        "held_blocks": held,
        "failed_blocks": stats["put_failed_blocks"],
        "segments": segments,
        "segment_mib": geometry.segment // MIB,
        "block_kib": geometry.block >> 10,
        "seconds": round(done.seconds, 1),
    }


def report(cells: dict[str, dict[str, dict[str, Any]]], load: list[float]) -> dict[str, Any]:
    """Makes the result from the figures by trace and share."""
    flat = [cell for shares in cells.values() for cell in shares.values()]
    ratios = [cell["hit_vs_lru"] for cell in flat if cell["hit_vs_lru"] is not None]
    result: dict[str, Any] = {
        "bench": "eviction",
        "min_hit_vs_lru": min(ratios, default=None),
        "mean_hit_vs_lru": round(statistics.fmean(ratios), 4) if ratios else None,
        "max_relocated_per_put": max((cell["relocated_per_put"] for cell in flat), default=None),
        "min_reachable_of_live": min((cell["reachable_of_live"] for cell in flat), default=None),
    }
    for key in flat[0] if flat else ():
        result[key] = {
            trace: {share: cell[key] for share, cell in shares.items()}
            for trace, shares in cells.items()
        }
    result["load"] = load
    return result


COLUMNS = {
    "hit_rate": "hit rate",
    "lru_hit_rate": "LRU",
    "hit_vs_lru": "of LRU",
    "relocated_per_put": "relocated",
    "reachable_of_live": "reachable",
    "held_blocks": "blocks",
    "segments": "segments",
    "block_kib": "KiB",
    "seconds": "s",
}


def run(paths: Sequence[Path], options: argparse.Namespace) -> dict[str, Any]:
    """Replays all traces at all shares and prints a row for each."""
    load = [round(os.getloadavg()[0], 2)]
    cells: dict[str, dict[str, dict[str, Any]]] = {}
    print(f"{'trace':36}{'share':>6}" + "".join(f"{name:>11}" for name in COLUMNS.values()))
    for path in paths:
        trace = read_trace(path, options.block_tokens)
        names = names_of(trace)
        name = path.name.split(".")[0]
        for share in options.share or SHARES:
            cell = run_cell(trace, names, share, options)
            cells.setdefault(name, {})[f"{share:.0%}"] = cell
            row = "".join(f"{cell[key] if cell[key] is not None else '-':>11}" for key in COLUMNS)
            print(f"{name:36}{share:>6.0%}{row}", flush=True)
    load.append(round(os.getloadavg()[0], 2))
    return report(cells, load)


def main(argv: Sequence[str]) -> int:
    """Runs the bench; the last line on standard output is its result as JSON.

    Args:
        argv: As ``--help`` shows.

    Returns:
        0; 2 if a trace cannot be read or replayed.
    """
    options = _parser().parse_args(argv)
    data = Path(__file__).resolve().parents[3] / DATA
    paths = options.trace or [path for name in TRACES if (path := data / name).is_file()]
    if not paths:
        print(f"SKIPPED: no trace was given with --trace, and {DATA} has none")
        print(json.dumps({"bench": "eviction", "skipped": True}))
        return 0
    try:
        result = run(paths, options)
    except (OSError, ValueError) as error:
        print(f"dalsegno: {error}", file=sys.stderr)
        return 2
    print(json.dumps(result))
    return 0


def _share(text: str) -> float:
    share = float(text)
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError("a share is above 0 and at most 1")
    return share


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dalsegno bench eviction",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--trace",
        type=Path,
        action="append",
        help=f"a trace in Mooncake's format, plain, .xz or .gz; may be repeated (those in {DATA})",
    )
    add(
        "--share",
        type=_share,
        action="append",
        help="the store's part of the distinct blocks; may be repeated (0.05, 0.10 and 0.25)",
    )
    add("--block-tokens", type=int, help="tokens of a block of the trace (inferred)")
    add("--extent-blocks", type=int, default=4, help="blocks of an extent at most (%(default)s)")
    add("--index", default="memory", help="memory or lsm (%(default)s)")
    add(
        "--merge-rate",
        default="0",
        help="the setting merge_rate; merging depends on time, so figures then vary (%(default)s)",
    )
    add(
        "--dir",
        type=Path,
        default=MEMORY if MEMORY.is_dir() else Path(tempfile.gettempdir()),
        help="where to write; the time on a disk is that of its syncs (%(default)s)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
