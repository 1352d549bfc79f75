"""Arguments and options that several commands take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dalsegno import InvalidError
from dalsegno.paths import FAR_SCHEMES, typed_path


def place(text: str) -> str:
    """Returns a directory, or the URL of a far location, as it was typed."""
    return text if text.startswith(FAR_SCHEMES) else str(typed_path(text))


def far_options(text: str) -> dict[str, Any]:
    """Returns the options of a far location.

    Raises:
        InvalidError: The text is no JSON object. It is not repeated, as it may be secret.
    """
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise InvalidError(
            """--far-options is no JSON object; give one such as '{"region": "eu-west-1"}'"""
        )
    return given


Directory = Annotated[
    str,
    typer.Argument(metavar="DIR", parser=place, help="The store's directory, or a far location."),
]
StoreDirectory = Annotated[
    Path, typer.Argument(metavar="DIR", parser=typed_path, help="The store's directory.")
]
FarDirectory = Annotated[
    str,
    typer.Argument(metavar="DIR", parser=place, help="What stores share: a directory or a URL."),
]
FarOptions = Annotated[
    dict[str, Any] | None,
    typer.Option(
        "--far-options",
        metavar="JSON",
        parser=far_options,
        help="How the URL of a far location is reached: `far_options` of a store.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print exact numbers as JSON.")]
