"""What `info`, `ls` and `verify` show of a far location."""

from __future__ import annotations

from typing import Any

import typer

import dalsegno
from dalsegno import InvalidError
from dalsegno.cli import show
from dalsegno.cli.work import Progressed, with_progress

DAMAGED = 1
# Most extents that `ls --extents` lists.
MOST_EXTENTS = 1_000_000
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def ago(seconds: float | None) -> str:
    """Writes how long ago something was: ``3 s ago``, ``2.5 h ago``."""
    if seconds is None:
        return "unknown"
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.1f}".removesuffix(".0") + f" {unit} ago"
    return "now"


def is_far(directory: str, options: dict[str, Any] | None) -> bool:
    """Whether this is a far location and no store.

    Raises:
        InvalidError: There are options, and it is none.
    """
    found = dalsegno.is_far_location(directory)
    if options is not None and not found:
        raise InvalidError(f"{directory} is no far location; leave out --far-options")
    return found


def survey(directory: str, extents: int = 0, *, options: dict[str, Any] | None) -> dict[str, Any]:
    """Reads the catalogs of a far location."""

    def work(progress: Progressed) -> dict[str, Any]:
        return dalsegno.far_survey(directory, extents, progress, options=options)

    return with_progress("reading catalogs", work, in_bytes=False)


def info(directory: str, *, options: dict[str, Any] | None, as_json: bool) -> None:
    """Shows the writers of a far location and what they wrote."""
    found = survey(directory, options=options)
    del found["extents"]
    writers, namespaces, faults = found["writers"], found["namespaces"], found["faults"]
    names = ("packs", "unpublished_packs", "bytes", "extents", "blocks", "removed_blocks")
    totals = {name: sum(row[name] for row in writers) for name in names}
    removals = found["removals"]
    totals["bytes"] += removals["bytes"]
    if as_json:
        show.as_json({"path": directory, "kind": "far", **totals, **found})
        return
    states = [row["state"] for row in writers]
    known = ("live", "silent", "earlier", "dead", "unknown")
    counts = {state: states.count(state) for state in known}
    by_state = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    unpublished = totals["unpublished_packs"]
    removed = totals["removed_blocks"]
    block_bytes = show.byte_count(sum(row["bytes"] for row in namespaces))
    show.facts(
        [
            ("far location", directory),
            ("writers", f"{len(writers):,}: {by_state}"),
            ("on disk", show.byte_count(totals["bytes"])),
            (
                "packs",
                f"{totals['packs']:,}"
                + (f", and {unpublished:,} without a catalog" if unpublished else ""),
            ),
            ("namespaces", f"{len(namespaces):,}"),
            ("extents", f"{totals['extents']:,}"),
            (
                "blocks",
                f"{totals['blocks']:,} ({block_bytes})"
                + (f", and {removed:,} that were removed" if removed else ""),
            ),
            (
                "removals",
                f"{removals['removals']:,} in {show.plural(removals['lists'], 'list')}",
            ),
            ("damage", _damage(faults)),
        ]
    )
    _writers(writers)
    if faults:
        print()
        _findings(faults)


def _writers(writers: list[dict[str, Any]]) -> None:
    print()
    show.table(
        ("writer", "state", "last sign of life>", "packs>", "blocks>", "size>"),
        [
            (
                row["writer"],
                row["state"],
                ago(row["silent_s"]),
                f"{row['packs']:,}",
                f"{row['blocks']:,}",
                show.byte_count(row["bytes"]),
            )
            for row in writers
        ],
    )


def extents_by_namespace(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The namespaces of a survey, each with its ``extent_rows``."""
    rows: list[dict[str, Any]] = [{**row, "extent_rows": []} for row in found["namespaces"]]
    by_id = {row["id"]: row for row in rows}
    for extent in found["extents"]:
        by_id[extent["namespace"]]["extent_rows"].append(extent)
    return rows


def verify(directory: str, *, repair: bool, options: dict[str, Any] | None, as_json: bool) -> None:
    """Reads every byte of a far location and checks it."""
    if repair:
        raise InvalidError(
            f"{directory} is a far location, and --repair is for stores: damaged blocks are "
            "misses; to remove all objects of a writer use `dalsegno prune`"
        )

    def work(progress: Progressed) -> dict[str, Any]:
        return dalsegno.far_verify(directory, progress, options=options)

    report = with_progress("checking", work)
    clean = not report["findings"]
    if as_json:
        show.as_json({"path": directory, "clean": clean, **report})
    else:
        _print_report(report)
    if not clean:
        raise typer.Exit(DAMAGED)


def _print_report(report: dict[str, Any]) -> None:
    words = ("writer", "catalog", "list", "pack", "extent", "block", "slice")
    counted = ", ".join(show.plural(report[f"{word}s"], word) for word in words)
    print(f"checked {counted}: {show.byte_count(report['bytes'])}")
    if report["unpublished"]:
        count = show.plural(len(report["unpublished"]), "pack")
        print(f"{count} without a catalog, being written or left by a crash; no block is lost:")
        for one in report["unpublished"]:
            print(f"  {show.plain(one['file'])}  {show.byte_count(one['bytes'])}")
    findings, more = report["findings"], report["more_findings"]
    if not findings:
        print("clean")
        return
    print(f"{show.plural(len(findings) + more, 'finding')}:\n")
    _findings(findings)
    if more:
        print(f"… {more:,} more")


def _findings(rows: list[dict[str, Any]]) -> None:
    show.table(
        ("file", "offset>", "finding"),
        [(one["file"], one["offset"], one["what"]) for one in rows],
    )


def _damage(faults: list[dict[str, Any]]) -> str:
    if not faults:
        return "none in catalogs and lists; `dalsegno verify` checks every byte"
    return f"{show.plural(len(faults), 'object')} cannot be used; what they name is a miss"
