"""How answers look: tables with human units for people, exact numbers as JSON for programs.

1. Nothing but plain text goes to what is no terminal: no colours, no wrapping at 80 columns.
2. Text of the store is shown as it is: never taken for markup, never able to steer the terminal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
# Wider than any row: a program that reads a pipe wants whole lines.
_UNBROKEN = 10_000


def console(*, stderr: bool = False) -> Console:
    """Returns a console on the stream as it is now; tests put another one in its place."""
    made = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not made.is_terminal:
        made.width = _UNBROKEN
    return made


def byte_count(count: int) -> str:
    """Writes a byte count with a binary unit and at most one decimal: ``1.5 GiB``."""
    size, unit = float(count), _UNITS[0]
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{size:.1f} {unit}".replace(".0 ", " ")


def plural(count: int, word: str) -> str:
    """Writes a count with its noun: ``1 block``, ``3 blocks``."""
    return f"{count:,} {word if count == 1 else word + 's'}"


def plain(text: str) -> str:
    """Writes out control characters, so that no stored text steers the terminal."""
    return "".join(one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in text)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints rows under column names; a name that ends in ``>`` has its column aligned right."""
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in columns:
        made.add_column(name.rstrip(">"), justify="right" if name.endswith(">") else "left")
    for row in rows:
        made.add_row(*(plain(str(cell)) for cell in row))
    _print(made)


def facts(rows: Iterable[tuple[str, object]]) -> None:
    """Prints names and values, one pair a line."""
    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    made.add_column(style="bold")
    made.add_column()
    for name, value in rows:
        made.add_row(name, plain(str(value)))
    _print(made)


def _print(made: Table) -> None:
    target = console()
    if target.is_terminal:
        target.print(made)
        return
    with target.capture() as captured:
        target.print(made)
    print("\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n")))


def as_json(value: Any) -> None:
    """Prints a value for programs."""
    print(json.dumps(value, indent=2))
