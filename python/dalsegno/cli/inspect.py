"""``dalsegno inspect``: the bytes of a file, with the names of the format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

import dalsegno
from dalsegno.cli import far, show
from dalsegno.cli.options import AsJson, Directory, FarOptions

DAMAGED = 1
# Bytes on a line; of a longer field only the first lines are printed, of a long list the first.
LINE_BYTES = 16
MOST_LINES = 4
MOST_ROWS = 64


def inspect(
    directory: Directory,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Name of a file in it, as `verify` prints it.")
    ],
    offset: Annotated[
        int | None,
        typer.Argument(metavar="[OFFSET]", min=0, help="Any byte of the record to show."),
    ] = None,
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="Leave nothing out of long fields and lists.")
    ] = False,
    far_options: FarOptions = None,
    as_json: AsJson = False,
) -> None:
    """Show the bytes of a file, with the names of its format.

    The names are those of docs/formats/log.md. Of a segment, that is its header and a list of its
    records; with an offset, the record that holds that byte: every field of its header, and each
    slice compared with its checksum. A damaged header is shown all the same, with what is wrong.
    Nothing is written. At a far location, FILE is a folder and a name in it: a catalog with its
    entries, or a pack with its records, as docs/formats/pack.md names them.

    Example:
      dalsegno inspect /var/cache/kv store.meta
      dalsegno inspect /var/cache/kv segment-0000000000000001.log
      dalsegno inspect /var/cache/kv segment-0000000000000001.log 4096

    Exit codes: 0 what is shown is in order, 1 it is damaged, 2 could not look (no store, locked,
    no such file or record).
    """
    if far.is_far(directory, far_options):
        found = dalsegno.far_inspect(directory, file, offset, options=far_options)
    else:
        found = dalsegno.inspect(directory, file, offset)
    if as_json:
        show.as_json({"path": directory, "file": file, **found})
    else:
        _print(found, everything=everything)
    records, parts = found["records"], found["parts"]
    if (
        found["problem"]
        or any(one["problem"] for one in records)
        or not all(one["right"] for one in parts)
    ):
        raise typer.Exit(DAMAGED)


def _print(found: dict[str, Any], *, everything: bool) -> None:
    print(f"{found['title']}: {found['problem'] or 'valid'}\n")
    show.table(
        ("offset>", "bytes", "field", "says"),
        list(_shortened(_rows(found["fields"], everything=everything), everything=everything)),
    )
    if found["records"]:
        print(f"\n{show.plural(len(found['records']), 'record')}\n")
        rows = [
            (
                one["offset"],
                one["kind"],
                show.byte_count(one["bytes"]),
                one["blocks"],
                one["sequence"],
                one["problem"],
            )
            for one in found["records"]
        ]
        columns = ("offset>", "kind", "size>", "blocks>", "sequence>", "problem")
        show.table(columns, list(_shortened(iter(rows), everything=everything)))
    if found["parts"]:
        wrong = sum(not one["right"] for one in found["parts"])
        state = f"{wrong:,} of them damaged" if wrong else "all checksums match"
        print(f"\npayload: {show.plural(len(found['parts']), 'part')}, {state}\n")
        rows = [
            (
                one["offset"],
                _spaced(one["first"]) + " …",
                one["name"],
                one["bytes"],
                one["crc"],
                "right" if one["right"] else one["problem"] or "wrong",
            )
            for one in found["parts"]
        ]
        columns = ("offset>", "first bytes", "part", "bytes>", "crc", "checksum")
        show.table(columns, list(_shortened(iter(rows), everything=everything)))


def _rows(
    fields: list[dict[str, Any]], *, everything: bool
) -> Iterator[tuple[object, str, str, str]]:
    """Lines of a table of fields: 16 bytes each, the name beside the first."""
    for field in fields:
        text, at = field["hex"], field["offset"]
        count = len(text) // 2
        if field["says"] == "zeros" and count > LINE_BYTES:
            yield at, f"{count:,} zeros", field["name"], ""
            continue
        step = 2 * LINE_BYTES
        lines = [text[start : start + step] for start in range(0, len(text), step)]
        shown = lines if everything else lines[:MOST_LINES]
        for number, line in enumerate(shown):
            name, says = (field["name"], field["says"]) if number == 0 else ("", "")
            yield at + number * LINE_BYTES, _spaced(line), name, says
        if len(shown) < len(lines):
            yield "", f"… {count - len(shown) * LINE_BYTES:,} more bytes", "", ""


def _shortened(rows: Iterator[tuple[Any, ...]], *, everything: bool) -> Iterator[tuple[Any, ...]]:
    """The first rows, and how many are left out."""
    left_out, width = 0, 0
    for number, row in enumerate(rows):
        if everything or number < MOST_ROWS:
            width = len(row)
            yield row
        else:
            left_out += 1
    if left_out:
        yield ("", f"… {left_out:,} more; --all", *[""] * (width - 2))


def _spaced(text: str) -> str:
    """Bytes in hexadecimal, apart."""
    return " ".join(text[at : at + 2] for at in range(0, len(text), 2))
