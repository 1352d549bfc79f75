"""Arguments and options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dalsegno.paths import OBJECT_SCHEMES, typed_path


def place(text: str) -> str:
    """Returns a directory, or the URL of an object store, as it was typed."""
    return text if text.startswith(OBJECT_SCHEMES) else str(typed_path(text))


Directory = Annotated[
    str,
    typer.Argument(metavar="DIR", parser=place, help="The store's directory, or a far location."),
]
StoreDirectory = Annotated[
    Path, typer.Argument(metavar="DIR", parser=typed_path, help="The store's directory.")
]
FarDirectory = Annotated[
    str,
    typer.Argument(
        metavar="DIR", parser=place, help="What stores share: a directory, s3://, gs:// or az://."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print exact numbers as JSON.")]
