"""``dalsegno verify``: check every byte of a store, and drop damaged blocks on request."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import dalsegno
from dalsegno.cli import far, show
from dalsegno.cli.options import AsJson, Directory, FarOptions
from dalsegno.cli.work import with_progress

DAMAGED = 1


def verify(
    directory: Directory,
    *,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Drop damaged blocks, keep the rest, and check again."),
    ] = False,
    far_options: FarOptions = None,
    as_json: AsJson = False,
) -> None:
    """Read every byte of a store and check it.

    It checks headers, blocks, padding and an on-disk index. Nothing is written without --repair.
    No damage needs a repair: the store never returns damaged blocks, they are misses, and their
    space is reclaimed; a damaged index is rebuilt and costs no block. Findings mean that the disk,
    or a program that wrote to these files, cannot be trusted.

    With --repair, a segment with a finding is rewritten: its good blocks move to another segment,
    the damaged ones are dropped. That needs free space for one segment; without it the segment
    stays as it is.

    A far location is checked while stores use it: every catalog, and every byte of every pack.

    Example:
      dalsegno verify /var/cache/kv && echo clean
      dalsegno verify /var/cache/kv --json | jq '.findings[].file'
      dalsegno verify /var/cache/kv --repair

    Exit codes: 0 clean, also after a repair, 1 findings, or some that could not be repaired,
    2 could not check (no store, locked, of a newer version).
    """
    if far.is_far(directory, far_options):
        far.verify(directory, repair=repair, options=far_options, as_json=as_json)
        return
    native = dalsegno.repair if repair else dalsegno.verify
    report = with_progress("checking", lambda progress: native(directory, progress))
    last = report["after"] if repair else report
    clean = not last["findings"]
    if as_json:
        show.as_json({"path": directory, "clean": clean, **report})
    elif repair:
        _print_repair(report)
    else:
        _print_report(report)
    if not clean:
        raise typer.Exit(DAMAGED)


def _print_report(report: dict[str, Any]) -> None:
    counts = [
        (report["segments"], "segment"),
        (report["extents"], "extent"),
        (report["blocks"], "block"),
        (report["slices"], "slice"),
    ]
    if report["tables"]:
        counts.append((report["tables"], "index table"))
    counted = ", ".join(show.plural(count, word) for count, word in counts)
    print(f"checked {counted}: {show.byte_count(report['bytes'])}")
    findings = report["findings"]
    if not findings:
        print("clean")
        return
    print(f"{show.plural(len(findings), 'finding')}:\n")
    show.table(
        ("file", "offset>", "finding"),
        [(one["file"], one["offset"], one["what"]) for one in findings],
    )


def _print_repair(report: dict[str, Any]) -> None:
    _print_report(report["before"])
    if not report["before"]["findings"]:
        return
    segments = show.plural(report["segments"], "segment")
    dropped = show.plural(report["dropped_blocks"], "block")
    print(f"\nrepaired: {segments} rewritten, {dropped} dropped\n")
    _print_report(report["after"])
