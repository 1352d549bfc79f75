"""One system prompt, many prompts behind it: how much stays reachable when the store is too small.

Every prompt has a root of 10 blocks that all share, and 6 blocks of its own. Prompts of four times
the capacity are put. Then the store is closed and opened, and prompts of one capacity are put.

A *cell* is a way to use the root before each prompt (no use, or one call with its chain), an index,
and how prompts are put. ``whole`` puts root and prompt. ``first`` names the root but passes only
the blocks behind it, as vLLM's tier does while the engine has the root in its own memory.

``fit_blocks`` are the blocks of the prompts that fit into all segments except two: one is kept free
and one is being filled. Reachable are the leading present blocks behind the root, of as many newest
prompts. A cell's share is the least of 20 samples over the last two capacities, and of those after
the store was opened again. Samples are taken by ``peek``, which does not count as a use.

Then 24 conversations of 6 turns follow behind the same root, with other prompts between the turns.
Conversations that fit must not lose a block.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

import dalsegno
from dalsegno_bench.eviction.conversations import CONVERSATIONS, Outcome, Way, converse
from dalsegno_bench.eviction.prefixes import (
    PROMPT_BLOCKS,
    ROOT,
    Geometry,
    Setup,
    Subject,
    calibrate,
    chain_of,
)

__all__ = ["SUMMARY", "Cell", "Outcome", "Result", "main", "report", "sample_points"]

SUMMARY = "what stays reachable behind a system prompt that the engine serves from its own memory"

# Capacities put before the store is opened again, and after.
BEFORE, AFTER = 4, 1
INDEXES = ("memory", "lsm")
PUTS = ("whole", "first")
Touch = Literal["nothing", "probe", "put", "get", "touch"]


@dataclass(frozen=True)
class Cell:
    """How the root is used and prompts are put."""

    index: str
    puts: str
    touch: Touch

    def __str__(self) -> str:
        return f"{self.index} {self.puts} {self.touch}"


@dataclass
class Result:
    """What a cell gave.

    Attributes:
        geometry: What its store holds.
        shares: Reachable part of the blocks that fit, by the number of prompts put.
        max_loss_blocks: As of :class:`Subject`.
        put_bytes: Bytes of blocks written.
        relocated_bytes: Bytes moved by eviction.
    """

    geometry: Geometry
    shares: dict[int, float] = field(default_factory=dict)
    max_loss_blocks: int = 0
    put_bytes: int = 0
    relocated_bytes: int = 0

    def least(self, *, reopened: bool) -> float:
        """The least share before, or after, the store was opened again."""
        end = BEFORE * self.geometry.capacity_prompts
        return min(share for at, share in self.shares.items() if (at > end) == reopened)


def sample_points(geometry: Geometry, samples: int) -> list[int]:
    """Numbers of prompts put after which a sample is taken."""
    end = BEFORE * geometry.capacity_prompts
    span = 2 * geometry.capacity_prompts
    points = [end - span + span * number // samples for number in range(1, samples + 1)]
    after = AFTER * geometry.capacity_prompts
    count = max(1, samples // 2)
    return points + [end + after * number // count for number in range(1, count + 1)]


def run_cell(cell: Cell, setup: Setup, geometry: Geometry, points: Sequence[int]) -> Result:
    """Runs a cell, with samples after so many prompts."""
    with Subject(setup) as subject:
        shares = _history(cell, subject, geometry, points)
    return Result(
        geometry, shares, subject.max_loss_blocks, subject.put_bytes, subject.relocated_bytes
    )


def _history(
    cell: Cell, subject: Subject, geometry: Geometry, points: Sequence[int]
) -> dict[int, float]:
    """Puts prompts until the last sample; returns the samples."""
    shares = {}
    subject.put(ROOT)
    for number in range(1, max(points) + 1):
        if number == BEFORE * geometry.capacity_prompts + 1:
            subject.reopen()
        _use_root(cell.touch, subject)
        first = len(ROOT) if cell.puts == "first" else 0
        subject.put(_prompt(number), first)
        if number in points:
            newest = range(number - geometry.fit_prompts + 1, number + 1)
            found = sum(_behind_root(subject, one) for one in newest)
            shares[number] = found / geometry.fit_blocks
    return shares


def _prompt(number: int) -> list[bytes]:
    return ROOT + chain_of(f"prompt {number}", PROMPT_BLOCKS)


def _behind_root(subject: Subject, number: int) -> int:
    """Leading present blocks of a prompt behind the root."""
    present = subject.namespace.peek(_prompt(number))
    leading = present.index(False) if False in present else len(present)
    return max(0, leading - len(ROOT))


def _use_root(touch: Touch, subject: Subject) -> None:
    """Uses the root as a cell says."""
    if touch == "probe":
        subject.namespace.probe(ROOT)
    elif touch == "put":
        subject.put(ROOT)
    elif touch == "get":
        subject.get(ROOT)
    elif touch == "touch":
        subject.namespace.touch(ROOT)


def report(
    cells: dict[Cell, Result], conversations: dict[str, Outcome], load: list[float]
) -> dict[str, Any]:
    """Makes the result."""
    result: dict[str, Any] = {"bench": "shared-prefix"}
    if cells:
        shares = {str(cell): round(one.least(reopened=False), 4) for cell, one in cells.items()}
        reopened = {str(cell): round(one.least(reopened=True), 4) for cell, one in cells.items()}
        result |= {
            "reachable_share": shares,
            "reachable_share_reopened": reopened,
            "min_reachable_share": min(*shares.values(), *reopened.values()),
            "max_loss_blocks": max(one.max_loss_blocks for one in cells.values()),
            "loss_blocks": {str(cell): one.max_loss_blocks for cell, one in cells.items()},
            "bytes_relocated_per_put_byte": {
                str(cell): round(one.relocated_bytes / one.put_bytes, 4)
                for cell, one in cells.items()
            },
            "fit_blocks": {cell.index: one.geometry.fit_blocks for cell, one in cells.items()},
            "segment_blocks": {
                cell.index: one.geometry.segment_blocks for cell, one in cells.items()
            },
        }
    if conversations:
        result["max_loss_blocks"] = max(
            result.get("max_loss_blocks", 0),
            *(one.max_loss_blocks for one in conversations.values()),
        )
        result["conversations_lost"] = sum(len(one.lost) for one in conversations.values())
        result["conversations"] = {
            name: {
                "fit": len(one.fitting),
                "lost": len(one.lost),
                "most_blocks_lost": one.lost_blocks,
                "max_loss_blocks": one.max_loss_blocks,
            }
            for name, one in conversations.items()
        }
    return result | {"load": load}


def run(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Runs all cells and conversations, with a row for each."""
    load = [round(os.getloadavg()[0], 2)]
    setups = {
        index: Setup(directory, index, options.capacity_mib << 20, options.block_kib << 10)
        for index in options.index or INDEXES
    }
    geometries = {index: calibrate(setup) for index, setup in setups.items()}
    cells: dict[Cell, Result] = {}
    conversations: dict[str, Outcome] = {}
    if options.part != "conversations":
        print(f"{'reachable':24}{'share':>8}{'reopened':>10}{'max loss':>10}{'relocated':>11}")
        for index, puts, touch in product(setups, PUTS, get_args(Touch)):
            cell, geometry = Cell(index, puts, touch), geometries[index]
            points = sample_points(geometry, options.samples)
            one = cells[cell] = run_cell(cell, setups[index], geometry, points)
            print(
                f"{cell!s:24}{one.least(reopened=False):8.3f}{one.least(reopened=True):10.3f}"
                f"{one.max_loss_blocks:10}{one.relocated_bytes / one.put_bytes:11.3f}",
                flush=True,
            )
    if options.part != "prompts":
        print(f"{f'{CONVERSATIONS} conversations':24}{'fit':>8}{'lost':>10}{'max loss':>10}")
        ways: tuple[Way, ...] = get_args(Way)
        for index, way in product(setups, ways):
            talk = converse(setups[index], geometries[index], way)
            conversations[f"{index} {way}"] = talk
            lost = f"{len(talk.lost):10}{talk.max_loss_blocks:10}"
            print(f"{f'{index} {way}':24}{len(talk.fitting):8}{lost}", flush=True)
    load.append(round(os.getloadavg()[0], 2))
    return report(cells, conversations, load)


def main(argv: Sequence[str]) -> int:
    """Runs the bench; the last line on standard output is its result as JSON.

    Args:
        argv: As ``--help`` shows.

    Returns:
        0; 2 if a store of this size cannot be.
    """
    options = _parser().parse_args(argv)
    directory = Path(tempfile.mkdtemp(prefix="dalsegno-bench-", dir=options.dir))
    try:
        result = run(directory, options)
    except dalsegno.InvalidError as error:
        print(f"dalsegno: {error}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(json.dumps(result))
    return 0


def _count(text: str) -> int:
    if (count := int(text)) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return count


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dalsegno bench shared-prefix",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--part", default="both", choices=("both", "prompts", "conversations"), help="what to run")
    add("--index", action="append", choices=INDEXES, help="one index only (both)")
    add("--capacity-mib", type=int, default=64, help="MiB of a store (%(default)s)")
    add("--block-kib", type=int, default=16, help="KiB of a block (%(default)s)")
    add(
        "--samples",
        type=_count,
        default=20,
        help="samples of a cell before reopening (%(default)s)",
    )
    add("--dir", type=Path, default=Path("/var/tmp"), help="where to write (%(default)s)")  # noqa: S108
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
