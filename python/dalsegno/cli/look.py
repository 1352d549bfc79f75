"""``dalsegno info`` and ``dalsegno ls``: what a store is and what it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import dalsegno
from dalsegno import InvalidError
from dalsegno.cli import show
from dalsegno.paths import local_path

# Enough digits of a hash to tell rows apart by eye; --json has them all.
SHORT = 12

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", parser=local_path, help="The store's directory.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print exact numbers as JSON.")]


def info(directory: Directory, *, as_json: AsJson = False) -> None:
    """Tell the size of a store, its segments, and what it holds.

    Only headers are read, so it is quick on a large store too. Damage that an open would meet is
    listed; `dalsegno verify` checks every byte.

    Example:
      dalsegno info /var/cache/kv
      dalsegno info /var/cache/kv --json | jq .blocks

    Exit codes: 0 told, 2 no store, locked, or of a newer version.
    """
    found = dalsegno.info(str(directory))
    if as_json:
        show.as_json({"path": str(directory), **found})
        return
    states = ("open", "sealed", "free", "damaged")
    counts = {state: found[f"segments_{state}"] for state in states}
    told = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    show.facts(
        [
            ("store", found["id"]),
            ("directory", directory),
            ("on disk", show.byte_count(found["disk_bytes"])),
            (
                "segments",
                f"{sum(counts.values())} of {show.byte_count(found['segment_bytes'])}"
                + (f": {told}" if told else ""),
            ),
            ("namespaces", len(found["namespaces"])),
            ("extents", _extent_counts(found)),
            (
                "blocks",
                f"{found['blocks']:,} ({show.byte_count(found['block_bytes'])}{_shrunk(found)})",
            ),
            *_index(found["index"]),
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
    mean, told = found["extents"] / lineages, show.plural(lineages, "lineage")
    return f"{found['extents']:,} in {told}: {mean:.1f} each, {most:,} at most"


def _damage(faults: list[dict[str, Any]]) -> str:
    if not faults:
        return "none in headers; `dalsegno verify` checks every byte"
    return f"{show.plural(len(faults), 'place')} in headers; what they held is a miss"


def ls(
    directory: Directory,
    *,
    extents: Annotated[
        bool, typer.Option("--extents", help="List the extents of each namespace too.")
    ] = False,
    namespace: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Only this namespace; its first digits are enough."),
    ] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=0, help="At most N extents; 0 lists all.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """List the namespaces of a store, and the extents of each.

    A namespace is who may share blocks: its fields name the model, the weights, the layout. Two
    namespaces that should be one differ in a field. A lineage is a run of the prefix tree of all
    prompts; an extent holds neighbouring blocks of one lineage.

    Example:
      dalsegno ls /var/cache/kv
      dalsegno ls /var/cache/kv --extents --namespace 3f2a --limit 20

    Exit codes: 0 listed, 2 no store, locked, of a newer version, or no such namespace.
    """
    rows = dalsegno.list_extents(str(directory))
    if namespace is not None:
        rows = [row for row in rows if row["id"].startswith(namespace.lower())]
        if not rows:
            raise InvalidError(
                f"{directory} holds no blocks of a namespace {namespace}; "
                "`dalsegno ls` without --namespace lists all"
            )
    _shorten(rows, limit if extents else None)
    if as_json:
        show.as_json({"path": str(directory), "namespaces": rows})
        return
    if not rows:
        print("no blocks")
        return
    _namespaces(rows)
    if extents:
        for row in rows:
            _extents(row)


def _shorten(rows: list[dict[str, Any]], limit: int | None) -> None:
    """Keeps the first ``limit`` extents of all namespaces; 0 keeps all, ``None`` none."""
    left = limit
    for row in rows:
        if left is None:
            del row["extent_rows"]
        elif limit:
            row["extent_rows"] = row["extent_rows"][:left]
            left -= len(row["extent_rows"])


def _namespaces(rows: list[dict[str, Any]]) -> None:
    columns = ("namespace", "fields", "shape", "lineages>", "extents>", "blocks>", "size>")
    show.table(
        columns,
        [
            (
                row["id"][:SHORT],
                "\n".join(f"{tag}={text}" for tag, text in row["fields"].items())
                or "(description lost)",
                f"{show.plural(row['layers'], 'layer')} of {show.byte_count(row['slice_bytes'])}",
                f"{row['lineages']:,}",
                f"{row['extents']:,}",
                f"{row['blocks']:,}",
                show.byte_count(row["bytes"]),
            )
            for row in rows
        ],
    )


def _extents(row: dict[str, Any]) -> None:
    shown = row["extent_rows"]
    print(f"\nextents of namespace {row['id'][:SHORT]}, {len(shown):,} of {row['extents']:,}")
    if not shown:
        return
    place = ("segment>", "offset>", "size>", "sequence>")
    show.table(
        ("lineage", "from block>", "blocks>", "first hash", *place),
        [
            (
                one["lineage"][:SHORT],
                one["first_block_index"],
                one["blocks"],
                one["first_hash"][:SHORT],
                one["segment"],
                one["offset"],
                show.byte_count(one["bytes"]),
                one["sequence"],
            )
            for one in shown
        ],
    )
