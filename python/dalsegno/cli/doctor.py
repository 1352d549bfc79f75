"""``dalsegno far doctor``: measure a location, and find out whether stores may use it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated, Any

import typer

import dalsegno
from dalsegno.cli import show
from dalsegno.cli.options import AsJson, FarDirectory, FarOptions
from dalsegno.cli.work import Progressed, with_progress
from dalsegno.paths import local_path

UNSAFE = 1


def far() -> None:
    """Examine what stores of many hosts share.

    `info`, `ls`, `verify`, `inspect` and `prune` take such a place, too.
    """


def doctor(
    directory: FarDirectory,
    *,
    other: Annotated[
        Path | None,
        typer.Option(
            parser=local_path, metavar="DIR", help="The same directory through another mount."
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long it may take, 2 to 600.")] = 20.0,
    far_options: FarOptions = None,
    as_json: AsJson = False,
) -> None:
    """Measure a shared directory or a bucket, and find out whether it is safe.

    It reads and writes as stores do: latency, bandwidth by the number of workers, direct I/O, and
    what stores need. A bucket is found by --far-options or the environment (AWS_ENDPOINT_URL,
    AWS_REGION), and credentials by the environment only. Give a second mount of the same directory
    with --other to check what other hosts see; reads then go through that one. It writes at most
    2 GiB to a folder of its own, and removes it at the end.

    Example:
      dalsegno far doctor /mnt/shared/kv
      dalsegno far doctor s3://bucket/kv
      dalsegno far doctor /mnt/shared/kv --other /mnt/again/kv --seconds 60

    Exit codes: 0 stores may use it, 1 it is unsafe, 2 it could not be examined (no such directory,
    not writable, nearly full), 130 interrupted.
    """
    stop = threading.Event()

    def work(progress: Progressed) -> dict[str, Any]:
        def go_on(thousandths: int) -> bool:
            progress(thousandths, 1000)
            return stop.is_set()

        again = None if other is None else str(other)
        return dalsegno.far_doctor(
            directory, other=again, seconds=seconds, progress=go_on, options=far_options
        )

    found = with_progress("examining", work, in_bytes=False, stop=stop)
    if as_json:
        show.as_json({"path": directory, "other": other and str(other), **found})
    else:
        _print(directory, other, found)
    if not found["is_safe"]:
        raise typer.Exit(UNSAFE)


def _print(directory: str, other: Path | None, found: dict[str, Any]) -> None:
    show.facts(
        [
            ("far location", directory),
            *_of_place(other, found),
            ("written", f"{show.byte_count(found['written_bytes'])}, and removed"),
        ]
    )
    print("\nwhat stores need")
    show.table(
        ("promise", "verdict", "seen"),
        [(row["name"], row["verdict"], row["detail"]) for row in found["promises"]],
    )
    if found["latency"]:
        print("\nlatency of one read at a time")
        show.table(
            ("size>", "p50>", "p99>", "reads>"),
            [
                (
                    show.byte_count(row["bytes"]),
                    _ms(row["p50_us"]),
                    _ms(row["p99_us"]),
                    row["count"],
                )
                for row in found["latency"]
            ],
        )
    if found["bandwidth"]:
        print("\nbandwidth by far_workers")
        show.table(
            ("far_workers>", "read>", "publish>"),
            [
                (
                    row["far_workers"],
                    f"{show.byte_count(row['read_bytes_per_s'])}/s",
                    f"{show.byte_count(row['publish_bytes_per_s'])}/s",
                )
                for row in found["bandwidth"]
            ],
        )
    _unreadable(found["unreadable"])
    print()
    for one in found["advice"]:
        print(f"{one['severity']}: {one['what']}\n  {one['action']}")
    print("safe" if found["is_safe"] else "unsafe")


def _of_place(other: Path | None, found: dict[str, Any]) -> list[tuple[str, object]]:
    """Facts of a directory, or what a bucket takes for a request and which ranges become one."""
    requests = found["requests"]
    if requests:
        return [
            ("response", _ms(requests["response_us"])),
            ("one request", f"{show.byte_count(requests['request_bytes_per_s'])}/s"),
            ("read as one", f"ranges {show.byte_count(requests['gap_bytes'])} apart or less"),
        ]
    return [
        *([("other mount", other)] if other else []),
        ("free", show.byte_count(found["free_bytes"])),
        ("direct I/O", "works" if found["direct"] else "does not work"),
    ]


def _unreadable(found: dict[str, Any]) -> None:
    """Prints the objects of stores that cannot be read."""
    if found["objects"]:
        print("\nobjects that cannot be read; stores skip them")
        show.table(
            ("file", "why", "what to do"),
            [(one["file"], one["why"], one["action"]) for one in found["objects"]],
        )
        if found["more"]:
            print(f"… {found['more']:,} more")
    if not found["is_complete"]:
        print("\nnot all objects of stores were tried; give more --seconds")


def _ms(microseconds: int) -> str:
    return f"{microseconds / 1000:.2f} ms"
