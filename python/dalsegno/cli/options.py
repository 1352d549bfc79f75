"""Arguments and options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dalsegno.paths import typed_path

Directory = Annotated[
    Path,
    typer.Argument(
        metavar="DIR", parser=typed_path, help="The store's directory, or a far location."
    ),
]
FarDirectory = Annotated[
    Path,
    typer.Argument(metavar="DIR", parser=typed_path, help="Directory that stores share."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print exact numbers as JSON.")]
