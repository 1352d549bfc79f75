"""``dalsegno prune``: remove what writers that are gone left at a far location."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import dalsegno
from dalsegno.cli import show
from dalsegno.cli.far import ago
from dalsegno.cli.options import AsJson, FarDirectory, FarOptions
from dalsegno.cli.work import Progressed, with_progress


def prune(
    directory: FarDirectory,
    writers: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WRITER]...", help="Further writers: the first digits of their folders."
        ),
    ] = None,
    *,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove them. Without it, only list them.")
    ] = False,
    far_options: FarOptions = None,
    as_json: AsJson = False,
) -> None:
    """Remove the packs of writers that are gone from a far location.

    A writer is a store while it is open. It is dead if it gave no sign of life for 24 hours, and
    has no packs or is of a store that gave none, either. Name a writer to remove it earlier, for
    example because its store was closed. The digits of a store's id name all of its writers. One
    that gave a sign of life within ten minutes is never removed. What is removed is a miss for all
    stores.

    Example:
      dalsegno prune /mnt/shared/kv
      dalsegno prune /mnt/shared/kv --remove
      dalsegno prune /mnt/shared/kv c0f8dbb5af7e --remove

    Exit codes: 0 listed or removed, 2 it could not (no far location, no such writer, a named one is
    live, an object cannot be removed).
    """

    def work(progress: Progressed) -> dict[str, Any]:
        return dalsegno.far_prune(
            directory, writers or [], remove=remove, progress=progress, options=far_options
        )

    report = with_progress("removing", work, in_bytes=False)
    if as_json:
        show.as_json({"path": directory, **report})
        return
    rows = report["writers"]
    if not rows:
        print(f"no dead writer; {show.plural(report['kept'], 'writer')} kept")
        return
    show.table(
        ("writer", "state", "last sign of life>", "packs>", "size>"),
        [
            (
                row["writer"],
                row["state"],
                ago(row["silent_s"]),
                f"{row['packs']:,}",
                show.byte_count(row["bytes"]),
            )
            for row in rows
        ],
    )
    freed = show.byte_count(sum(row["bytes"] for row in rows))
    counts = f"{show.plural(len(rows), 'writer')}, {freed}; {report['kept']:,} kept"
    print(f"\nremoved {counts}" if remove else f"\nwould remove {counts}; use --remove to do it")
