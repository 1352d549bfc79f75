"""Long work of native code: on a thread of its own, with a progress bar in a terminal."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from dalsegno.cli import show

Progressed = Callable[[int, int], None]
Work = Callable[[Progressed], dict[str, Any]]

INTERRUPTED = 130


def with_progress(
    label: str, work: Work, *, in_bytes: bool = True, stop: threading.Event | None = None
) -> dict[str, Any]:
    """Does the work, so that Ctrl-C works meanwhile and progress is seen.

    Args:
        label: What is done, for the bar.
        work: Gets a function to call with the amount done and in all.
        in_bytes: Whether the amounts are bytes.
        stop: Set by Ctrl-C if the work ends by itself then. Without it the process ends
            immediately, which is right for work that only reads or may stop anywhere.
    """
    answers: list[dict[str, Any] | BaseException] = []
    target = show.console(stderr=True)
    columns = [TextColumn(label), BarColumn(), *([DownloadColumn()] if in_bytes else [])]
    with Progress(
        *columns,
        TimeRemainingColumn(),
        console=target,
        transient=True,
        disable=not target.is_terminal,
    ) as bar:
        task = bar.add_task("", total=None)

        def progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        # Not joined: Python 3.11 takes a thread for ended if Ctrl-C interrupts a join.
        ended = threading.Event()
        given = (work, progress, answers, ended)
        threading.Thread(target=_answer, args=given, daemon=True).start()
        try:
            while not ended.wait(0.1):
                pass
        except KeyboardInterrupt:
            if stop is None:
                # The work goes on in native code.
                os._exit(INTERRUPTED)
            stop.set()
            ended.wait()
            raise typer.Exit(INTERRUPTED) from None
    answer = answers[0]
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _answer(
    work: Work,
    progress: Progressed,
    answers: list[dict[str, Any] | BaseException],
    ended: threading.Event,
) -> None:
    try:
        answers.append(work(progress))
    except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
        answers.append(error)
    finally:
        ended.set()
