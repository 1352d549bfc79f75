"""Commands of other distributions: entry points of the group ``dalsegno.commands``.

An entry point names a function with typer's annotations, as our own commands are.

1. A command is imported when it is called or when help lists it, never earlier.
2. A command that cannot be imported fails alone, with the reason.
3. ``bench`` and ``faultbench`` are always listed; without ``dalsegno-bench`` they say what to
   install.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperGroup

from dalsegno import UnavailableError

__all__ = ["Commands", "help_of"]

GROUP = "dalsegno.commands"
# Commands of this repository's second distribution.
OF_BENCH = {
    "bench": "Measure the store on this machine.",
    "faultbench": "Inject the same faults into every store, and count what fails.",
}
INSTALL = (
    "this command is in the package dalsegno-bench, which is not installed here: "
    "in a checkout run `make dev`, or `pip install ./bench`"
)
# All that follows a command belongs to it, known or not.
_ANY_ARGUMENTS = {"allow_interspersed_args": False, "ignore_unknown_options": True}


def help_of(command: Callable[..., None]) -> str:
    """Returns a command's docstring as help; examples and exit codes keep their lines."""
    text = inspect.cleandoc(command.__doc__ or "")
    return re.sub(r"^(?=Example:|Exit codes:)", "\b\n", text, flags=re.MULTILINE)


class Commands(TyperGroup):
    """Our own commands, then those of entry points."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Returns the names in the order of the help."""
        own = super().list_commands(ctx)
        return own + sorted((OF_BENCH.keys() | _found().keys()) - set(own))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns a command by its name; ``None`` if there is none."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        if (entry := _found().get(cmd_name)) is not None:
            return _loaded(entry)
        if cmd_name in OF_BENCH:
            return _missing(cmd_name, f"{OF_BENCH[cmd_name]} (dalsegno-bench)", INSTALL)
        return None


def _found() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _loaded(entry: EntryPoint) -> Any:
    try:
        function = entry.load()
    except Exception as error:  # noqa: BLE001 - whatever its import raises is its own affair
        why = f"this command cannot be loaded from {entry.value}: {type(error).__name__}: {error}"
        return _missing(entry.name, "(cannot be loaded)", why)
    return _command(entry.name, function, {"allow_interspersed_args": False})


def _missing(name: str, summary: str, why: str) -> Any:
    """Returns a command that fails with the reason, whatever its arguments."""

    def missing(arguments: list[str] | None = typer.Argument(None, hidden=True)) -> None:  # noqa: ARG001, B008
        raise UnavailableError(why)

    missing.__doc__ = f"{summary}\n\n{why[0].upper()}{why[1:]}."
    return _command(name, missing, _ANY_ARGUMENTS)


def _command(name: str, function: Callable[..., None], settings: dict[str, Any]) -> Any:
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
    app.command(name=name, help=help_of(function), context_settings=settings)(function)
    return typer.main.get_command(app)
