"""``dalsegno verify``: check every byte of a store, and drop damaged blocks on request."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

import dalsegno
from dalsegno.cli import show
from dalsegno.cli.options import AsJson, Directory

Progressed = Callable[[int, int], None]
Work = Callable[[str, Progressed], dict[str, Any]]

DAMAGED = 1
INTERRUPTED = 130


def verify(
    directory: Directory,
    *,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Drop damaged blocks, keep the rest, and check again."),
    ] = False,
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

    Example:
      dalsegno verify /var/cache/kv && echo clean
      dalsegno verify /var/cache/kv --json | jq '.findings[].file'
      dalsegno verify /var/cache/kv --repair

    Exit codes: 0 clean, also after a repair, 1 findings, or some that could not be repaired,
    2 could not check (no store, locked, of a newer version).
    """
    work = dalsegno.repair if repair else dalsegno.verify
    try:
        report = _answered(work, directory)
    except KeyboardInterrupt:
        # The work goes on in native code. A check only reads; a repair may stop anywhere.
        os._exit(INTERRUPTED)
    last = report["after"] if repair else report
    clean = not last["findings"]
    if as_json:
        show.as_json({"path": str(directory), "clean": clean, **report})
    elif repair:
        _print_repair(report)
    else:
        _print_report(report)
    if not clean:
        raise typer.Exit(DAMAGED)


def _answered(work: Work, directory: Path) -> dict[str, Any]:
    """Does the work on a thread of its own, so that Ctrl-C works meanwhile."""
    answers: list[dict[str, Any] | BaseException] = []
    target = show.console(stderr=True)
    columns = (TextColumn("checking"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=target, transient=True, disable=not target.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def progress(done_bytes: int, total_bytes: int) -> None:
            bar.update(task, completed=done_bytes, total=total_bytes)

        given = (work, directory, progress, answers)
        thread = threading.Thread(target=_answer, args=given, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(0.1)
    answer = answers[0]
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _answer(
    work: Work,
    directory: Path,
    progress: Progressed,
    answers: list[dict[str, Any] | BaseException],
) -> None:
    try:
        answers.append(work(str(directory), progress))
    except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
        answers.append(error)


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
