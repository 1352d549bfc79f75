"""``dalsegno verify``: every byte of a store read and compared with its checksum."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

import dalsegno
from dalsegno.cli import show
from dalsegno.cli.look import AsJson, Directory

DAMAGED = 1
INTERRUPTED = 130


def verify(directory: Directory, *, as_json: AsJson = False) -> None:
    """Read every byte of a store and check it.

    That is headers, blocks, padding, and an index in files. Nothing is written or repaired, and no
    damage needs repair: the store itself never hands out damaged blocks, they are misses, and their
    space is used again; a damaged index is rebuilt and costs no block. Findings tell that the disk,
    or whoever wrote to these files, is not to be trusted.

    Example:
      dalsegno verify /var/cache/kv && echo clean
      dalsegno verify /var/cache/kv --json | jq '.findings[].file'

    Exit codes: 0 clean, 1 findings, 2 could not check (no store, locked, of a newer version).
    """
    try:
        report = _checked(directory)
    except KeyboardInterrupt:
        # The check goes on in native code, which only reads: there is nothing to wait for.
        os._exit(INTERRUPTED)
    findings = report["findings"]
    if as_json:
        show.as_json({"path": str(directory), "clean": not findings, **report})
    else:
        _tell(report)
    if findings:
        raise typer.Exit(DAMAGED)


def _checked(directory: Path) -> dict[str, Any]:
    """Runs the check on a thread of its own, so that Ctrl-C is heard while it runs."""
    answers: list[dict[str, Any] | BaseException] = []
    target = show.console(stderr=True)
    columns = (TextColumn("checking"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=target, transient=True, disable=not target.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def tell(done_bytes: int, total_bytes: int) -> None:
            bar.update(task, completed=done_bytes, total=total_bytes)

        thread = threading.Thread(target=_answer, args=(directory, tell, answers), daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(0.1)
    answer = answers[0]
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _answer(
    directory: Path,
    tell: Callable[[int, int], None],
    answers: list[dict[str, Any] | BaseException],
) -> None:
    try:
        answers.append(dalsegno.verify(str(directory), tell))
    except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
        answers.append(error)


def _tell(report: dict[str, Any]) -> None:
    counts = [
        (report["segments"], "segment"),
        (report["extents"], "extent"),
        (report["blocks"], "block"),
        (report["slices"], "slice"),
    ]
    if report["tables"]:
        counts.append((report["tables"], "index table"))
    told = ", ".join(show.plural(count, word) for count, word in counts)
    print(f"checked {told}: {show.byte_count(report['bytes'])}")
    findings = report["findings"]
    if not findings:
        print("clean")
        return
    print(f"{show.plural(len(findings), 'finding')}:\n")
    show.table(
        ("file", "offset>", "finding"),
        [(one["file"], one["offset"], one["what"]) for one in findings],
    )
