"""The commands put together, and what happens when one fails."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from dalsegno import DalsegnoError, __version__
from dalsegno.cli import (
    demo,
    doctor,
    info,
    inspect,
    ls,
    output,
    profile,
    profile_run,
    prune,
    serve,
    verify,
)
from dalsegno.cli.commands import Commands, help_of

# What a command could not do, as opposed to what it found.
COULD_NOT = 2

# Plain help reads the same in a terminal, in a pipe and in a document.
app = typer.Typer(
    name="dalsegno",
    cls=Commands,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_demo = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
_far = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
_profile = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it
    if wanted:
        print(f"dalsegno {__version__}")
        raise typer.Exit


def dalsegno(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Look into, check and try out a Dalsegno store: the KV cache that survives.

    Commands that take a directory work while no process has the store open. They only read, but
    for `verify --repair`. A far location, which stores of many hosts share, may be in use.

    Exit codes: 0 it is well, 1 it is not (damage was found, a demonstration failed),
    2 the question could not be answered (wrong arguments, a locked store, an output that cannot be
    written), 130 interrupted.
    """


app.callback(help=help_of(dalsegno))(dalsegno)
for _command in (info.info, ls.ls, verify.verify, inspect.inspect, prune.prune, serve.serve):
    app.command(help=help_of(_command))(_command)
_demo.callback(help=help_of(demo.demo))(demo.demo)
_demo.command("vllm", help=help_of(demo.demo_vllm))(demo.demo_vllm)
app.add_typer(_demo, name="demo")
_far.callback(help=help_of(doctor.far))(doctor.far)
_far.command("doctor", help=help_of(doctor.doctor))(doctor.doctor)
app.add_typer(_far, name="far")
_profile.callback(help=help_of(profile.profile))(profile.profile)
_profile.command("show", help=help_of(profile.profile_show))(profile.profile_show)
_profile.command("run", help=help_of(profile_run.profile_run))(profile_run.profile_run)
app.add_typer(_profile, name="profile")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; does not return.

    Args:
        arguments: What follows the program's name; by default the process's own.
    """
    try:
        with output.checked():
            app(args=arguments, prog_name="dalsegno")
    except output.OutputError as error:
        if not error.expected:
            output.complain(str(error))
        sys.exit(COULD_NOT)
    except DalsegnoError as error:
        output.complain(str(error))
        sys.exit(COULD_NOT)
