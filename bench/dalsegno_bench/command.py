"""``dalsegno bench``: one bench by its name, or the list of all."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from dalsegno.cli import show
from dalsegno_bench import registry

UNKNOWN = 2


def bench(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Which bench; without it, list all.")
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGS", help="The bench's own; see `bench NAME --help`."),
    ] = None,
) -> None:
    """Measure the store on this machine.

    The last line that a bench prints is one JSON object with every number.

    Example:
      dalsegno bench
      dalsegno bench log --help
      dalsegno bench log | tail -n 1 | jq .

    Exit codes: 0 measured or listed, 2 no such bench or wrong arguments; others are the bench's.
    """
    known = registry.summaries()
    if name is not None and name in known:
        raise typer.Exit(registry.run(name, arguments or []))
    if name is not None:
        print(f"dalsegno: there is no bench {name!r}; these are:", file=sys.stderr)
        for one, summary in known.items():
            print(f"  {one}: {summary}", file=sys.stderr)
        raise typer.Exit(UNKNOWN)
    show.table(("bench", "what it measures"), list(known.items()))
