"""``dalsegno info``: the size of a store and what it holds."""

from __future__ import annotations

from typing import Any

import dalsegno
from dalsegno.cli import far, show
from dalsegno.cli.options import AsJson, Directory, FarOptions


def info(directory: Directory, *, far_options: FarOptions = None, as_json: AsJson = False) -> None:
    """Show the size of a store, its segments and its contents.

    Only headers are read, so it is quick on a large store too. Damage that an open would meet is
    listed; `dalsegno verify` checks every byte. Of a far location, the writers are shown, and
    whether each is live, silent for ten minutes, earlier than another open of its store that lived
    longer, or dead for a day.

    Example:
      dalsegno info /var/cache/kv
      dalsegno info /var/cache/kv --json | jq .blocks

    Exit codes: 0 shown, 2 no store, locked, or of a newer version.
    """
    if far.is_far(directory, far_options):
        far.info(directory, options=far_options, as_json=as_json)
        return
    found = dalsegno.info(directory)
    if as_json:
        show.as_json({"path": directory, **found})
        return
    states = ("open", "sealed", "free", "damaged")
    counts = {state: found[f"segments_{state}"] for state in states}
    by_state = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    show.facts(
        [
            ("store", found["id"]),
            ("directory", directory),
            ("on disk", show.byte_count(found["disk_bytes"])),
            (
                "segments",
                f"{sum(counts.values())} of {show.byte_count(found['segment_bytes'])}"
                + (f": {by_state}" if by_state else ""),
            ),
            ("namespaces", len(found["namespaces"])),
            ("extents", _extent_counts(found)),
            (
                "blocks",
                f"{found['blocks']:,} ({show.byte_count(found['block_bytes'])}{_shrunk(found)})",
            ),
            *_index(found["index"]),
            *_pending(found["pending_removals"]),
            ("damage", _damage(found["faults"])),
        ]
    )
    if found["index"] and found["index"]["decisions"]:
        print("\nwhy the index has its shape, the last change at the bottom")
        show.table(
            ("from", "to", "reason"),
            [(one["from"], one["to"], one["reason"]) for one in found["index"]["decisions"]],
        )
    if found["faults"]:
        print()
        show.table(
            ("file", "offset>", "damage"),
            [(one["file"], one["offset"], one["what"]) for one in found["faults"]],
        )


def _index(found: dict[str, Any] | None) -> list[tuple[str, object]]:
    """The index in files, if there is one, in a line."""
    if found is None:
        return []
    runs = " ".join(str(count) for count in found["runs"]) or "none"
    tables = f"{show.plural(found['tables'], 'table')} of {show.byte_count(found['table_bytes'])}"
    return [("index", f"{tables}, shape {found['shape']}, runs per level: {runs}")]


def _shrunk(found: dict[str, Any]) -> str:
    """What the codec saved, if it saved something."""
    if found["stored_bytes"] >= found["block_bytes"]:
        return ""
    ratio = found["block_bytes"] / found["stored_bytes"]
    return f", stored in {show.byte_count(found['stored_bytes'])}, ratio {ratio:.2f}"


def _extent_counts(found: dict[str, Any]) -> str:
    lineages = sum(row["lineages"] for row in found["namespaces"])
    if not lineages:
        return f"{found['extents']:,}"
    most = max(row["most_extents"] for row in found["namespaces"])
    mean, counted = found["extents"] / lineages, show.plural(lineages, "lineage")
    return f"{found['extents']:,} in {counted}: {mean:.1f} each, {most:,} at most"


def _pending(removals: int) -> list[tuple[str, str]]:
    if not removals:
        return []
    waiting = f"{show.plural(removals, 'removal')} for other hosts; open the store with `far`"
    return [("pending", waiting)]


def _damage(faults: list[dict[str, Any]]) -> str:
    if not faults:
        return "none in headers; `dalsegno verify` checks every byte"
    return f"{show.plural(len(faults), 'place')} in headers; what they held is a miss"
