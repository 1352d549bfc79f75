"""A far directory on a shared file system: against raw files, when it stops, and with many blocks.

`raw`: packs are published and loaded, against a program that writes and reads files of the same
size with as many threads. `workers`: loads with 1 to 64 workers. `metadata`: files and operations
per GB, next to the file tiers of vLLM and LMCache. `stopped`: local hits and puts while the servers
of the far directory are stopped. `fresh`: how long until another host finds a block. `scale`: the
far index with millions of blocks.

Without --dir the bench starts a GlusterFS of its own, with two bricks and two mounts, as root. With
--tier s3 it starts an S3 server of its own, and compares with a plain client: `raw`, `stopped`,
`fresh`, `idle`, the same after ten minutes without use, `scattered`, blocks that are loaded one by
one, and `others`, stores of vLLM and LMCache.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dalsegno
from dalsegno.paths import local_path
from dalsegno_bench.far import bucket, fresh, metadata, scale, stopped
from dalsegno_bench.far.places import NoPlaceError, Place, opened
from dalsegno_bench.far.transfer import WORKERS, Figures, Transfers
from dalsegno_bench.index.program import build
from dalsegno_bench.shared_fs.cluster import ClusterError

__all__ = ["PARTS", "SUMMARY", "main"]

SUMMARY = "a far directory on a shared file system, against raw files on the same mount"

RAW_PROGRAM, SCALE_PROGRAM = "dalsegno-bench-far-raw", "dalsegno-bench-far-scale"


@dataclass(frozen=True)
class Dose:
    """How much is measured.

    Attributes:
        packs: Files of 32 MiB of each write.
        pilot_workers: Threads of the raw cells.
        pilot_repeats: How often each raw cell is measured.
        workers: Workers of the curve.
        curve_rounds: How often each of them is measured.
        stopped: Rounds and seconds of a phase.
        keys: Puts whose freshness is measured.
        blocks: Blocks of the far index.
        metadata_blocks: Blocks that each store writes.
        others: Rounds, and bytes of each, of stores of others in buckets.
        idle: Hosts that are asked after an idle time, and its seconds.
    """

    packs: int
    pilot_workers: tuple[int, ...]
    pilot_repeats: int
    workers: tuple[int, ...]
    curve_rounds: int
    stopped: tuple[int, float]
    keys: int
    blocks: int
    metadata_blocks: int
    others: tuple[int, int]
    idle: tuple[int, float]


WHOLE = Dose(
    32, (1, 2, 4, 8, 16), 2, WORKERS, 3, (9, 2.0), 40, 10_000_000, 512, (5, 1 << 30), (8, 630.0)
)
QUICK = Dose(2, (2, 4), 1, (1, 4), 1, (1, 0.5), 3, 100_000, 32, (1, 64 << 20), (2, 3.0))


@dataclass
class Session:
    """What the parts share.

    Attributes:
        place: The far directory.
        local: Where stores keep their logs.
        options: The command line.
        dose: How much is measured.
    """

    place: Place
    local: Path
    options: argparse.Namespace
    dose: Dose

    def transfers(self) -> Transfers:
        """The contenders of the parts that move bytes."""
        program = build(RAW_PROGRAM)
        if program is None:
            raise NoPlaceError("the baseline cannot be built")
        return Transfers(self.place, self.local, program, self.dose.packs)


def measure_raw(session: Session) -> dict[str, Any]:
    """Chooses the raw cells, then runs the rounds."""
    transfers, dose = session.transfers(), session.dose
    pilot = transfers.pilot(dose.pilot_workers, dose.pilot_repeats)
    cells = {mode: max(found, key=lambda cell: found[cell]) for mode, found in pilot.items()}
    note(f"raw cells: {cells}")
    figures = Figures()
    for number in range(session.options.rounds):
        transfers.round(cells, figures)
        note(f"round {number + 1} of {session.options.rounds} done")
    shown = {mode: [one.workers, one.request_mib] for mode, one in cells.items()}
    table = {
        mode: [[one.workers, one.request_mib, round(speed, 3)] for one, speed in found.items()]
        for mode, found in pilot.items()
    }
    return {
        **figures.result(),
        "raw_cells": shown,
        "pilot": table,
        "rounds": len(figures.samples["raw", "read"]),
    }


def measure_workers(session: Session) -> dict[str, Any]:
    """Loads with more and more workers."""
    dose = session.dose
    return session.transfers().curve(dose.workers, 1, dose.curve_rounds)


def measure_metadata(session: Session) -> dict[str, Any]:
    """Counts files and operations per GB."""
    pythons = [str(one) for one in session.options.python or metadata.interpreters()]
    return metadata.measure(session.place, session.local, session.dose.metadata_blocks, pythons)


def measure_stopped(session: Session) -> dict[str, Any]:
    """Times local hits and puts while the far directory works and while it is stopped."""
    rounds, seconds = session.dose.stopped
    return stopped.measure(session.place, session.local, rounds, seconds)


def measure_fresh(session: Session) -> dict[str, Any]:
    """Times how long another host does not find a block."""
    return fresh.measure(session.place, session.local, session.dose.keys)


def measure_scale(session: Session) -> dict[str, Any]:
    """Measures the far index with many blocks."""
    program = build(SCALE_PROGRAM)
    if program is None:
        raise NoPlaceError("the program cannot be built")
    return scale.measure(program, session.dose.blocks)


Part = Callable[[Session], dict[str, Any]]

PARTS: dict[str, Part] = {
    "raw": measure_raw,
    "workers": measure_workers,
    "metadata": measure_metadata,
    "stopped": measure_stopped,
    "fresh": measure_fresh,
    "scale": measure_scale,
}


def note(text: str) -> None:
    """Prints progress."""
    print(text, file=sys.stderr, flush=True)


def run(options: argparse.Namespace, local: Path) -> dict[str, Any]:
    """Runs the parts; returns their figures."""
    dose = QUICK if options.quick else WHOLE
    if options.tier == "s3":
        return bucket.run(options, local, dose)
    result: dict[str, Any] = {}
    with opened(options.dir) as place:
        session = Session(place, local, options, dose)
        for name in options.only:
            note(f"{name} ...")
            result |= PARTS[name](session)
    return result


def main(argv: Sequence[str]) -> int:
    """Runs the bench; the last line on standard output is its result as JSON.

    Args:
        argv: As ``--help`` shows.

    Returns:
        0; 1 if there is nothing to measure on, or a baseline is missing; 2 if a part failed.
    """
    options = _parser().parse_args(argv)
    parts = bucket.PARTS if options.tier == "s3" else tuple(PARTS)
    options.only = options.only or list(parts)
    unknown = [part for part in options.only if part not in parts]
    if unknown:
        known = ", ".join(parts)
        note(f"dalsegno: --tier {options.tier} has no part {unknown[0]}; it has {known}")
        return 1
    local = Path(tempfile.mkdtemp(prefix="dalsegno-bench-", dir=options.local))
    load = [round(os.getloadavg()[0], 2)]
    try:
        result = run(options, local)
    except NoPlaceError as error:
        print(f"dalsegno: {error}", file=sys.stderr)
        return 1
    except (OSError, RuntimeError, ClusterError, dalsegno.DalsegnoError) as error:
        print(f"dalsegno: {error}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(local, ignore_errors=True)
    load.append(round(os.getloadavg()[0], 2))
    result = {"bench": "far", **result, "cpus": os.cpu_count(), "load": load}
    private = "private SeaweedFS" if options.tier == "s3" else "private GlusterFS"
    result |= {"file_system": str(options.dir or private), "local": str(options.local)}
    for name, value in result.items():
        if not isinstance(value, dict | list):
            print(f"{name:28}{value!s:>14}")
    print(json.dumps(result))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dalsegno bench far",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--dir", type=local_path, help="a directory of a mounted file system (private GlusterFS)")
    add("--rounds", type=int, default=9, help="rounds of the part raw (%(default)s)")
    parts = dict.fromkeys((*PARTS, *bucket.PARTS))
    add(
        "--tier", choices=("fs", "s3"), default="fs", help="a file system or a bucket (%(default)s)"
    )
    add("--only", action="append", choices=parts, metavar="PART", help=f"one of {', '.join(parts)}")
    add("--quick", action="store_true", help="a smoke test: few bytes, short measurements")
    add("--python", action="append", type=local_path, help="an environment with vLLM or LMCache")
    default = Path(tempfile.gettempdir())
    add("--local", type=local_path, default=default, help="for local stores (%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
