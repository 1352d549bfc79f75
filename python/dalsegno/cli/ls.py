"""``dalsegno ls``: the namespaces of a store and their extents."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import dalsegno
from dalsegno import InvalidError
from dalsegno.cli import far, show
from dalsegno.cli.options import AsJson, Directory, FarOptions

# Digits of a hash in a table, enough to compare rows by eye; --json prints all of them.
SHORT = 12


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
    far_options: FarOptions = None,
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
    if far.is_far(directory, far_options):
        # All of them: which are wanted is known afterwards.
        most = far.MOST_EXTENTS if extents else 0
        rows = far.extents_by_namespace(far.survey(directory, most, options=far_options))
    else:
        rows = dalsegno.list_extents(directory)
    if namespace is not None:
        rows = [row for row in rows if row["id"].startswith(namespace.lower())]
        if not rows:
            raise InvalidError(
                f"{directory} holds no blocks of a namespace {namespace}; "
                "`dalsegno ls` without --namespace lists all"
            )
    _shorten(rows, limit if extents else None)
    if as_json:
        show.as_json({"path": directory, "namespaces": rows})
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
    # A far location has writers, a store lineages.
    counted = "writers" if "writers" in rows[0] else "lineages"
    columns = ("namespace", "fields", "shape", f"{counted}>", "extents>", "blocks>", "size>")
    show.table(
        columns,
        [
            (
                row["id"][:SHORT],
                "\n".join(f"{tag}={text}" for tag, text in row["fields"].items())
                or "(description lost)",
                f"{show.plural(row['layers'], 'layer')} of {show.byte_count(row['slice_bytes'])}",
                f"{row[counted]:,}",
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
    file = "pack" if "pack" in shown[0] else "segment"
    place = (file if file == "pack" else "segment>", "offset>", "size>", "sequence>")
    show.table(
        ("lineage", "from block>", "blocks>", "first hash", *place),
        [
            (
                one["lineage"][:SHORT],
                one["first_block_index"],
                one["blocks"],
                one["first_hash"][:SHORT],
                one[file],
                one["offset"],
                show.byte_count(one["bytes"]),
                one["sequence"],
            )
            for one in shown
        ],
    )
