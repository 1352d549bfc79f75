"""An engine with a child, which both say how a file changed since the engine began."""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path

from dalsegno.integrations.common import file_times


def report(path: str, *announce: str) -> None:
    """Prints how a file changed since the engine of this process began.

    Args:
        path: The file.
        announce: Whether engines load our plugin, which they do first in every process.
    """
    if announce:
        file_times.announce_start()
    change = file_times.change_since(Path(path), file_times.engine_start_ns())
    sys.stdout.write(f"{change!r}\n")
    sys.stdout.flush()


def main(path: str, *announce: str) -> None:
    """Reports in this process and in a child, as front ends start engines."""
    report(path, *announce)
    child = multiprocessing.get_context("spawn").Process(target=report, args=(path, *announce))
    child.start()
    child.join()
