"""``dalsegno demo``: the store at work behind an engine."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated

import typer

from dalsegno import UnavailableError
from dalsegno.paths import local_path


def _readable_file(text: str) -> Path:
    """Returns the path of a file.

    Raises:
        BadParameter: It is none, or cannot be read.
    """
    path = local_path(text)
    try:
        with path.open("rb"):
            return path
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be read: {error.strerror or error}") from error


def demo() -> None:
    """See the store keep work through a crash."""


def demo_vllm(
    *,
    doc: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=_readable_file,
            help="Ask about this text instead of the one that comes along.",
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            parser=local_path,
            help="Where the model is, or will be.",
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the store and the logs, and print where they are.")
    ] = False,
    json_only: Annotated[
        bool, typer.Option("--json", help="Print nothing but the result, as one JSON object.")
    ] = False,
) -> None:
    """Ask a real vLLM about a long text, kill it, ask again.

    A second engine then finds the work of the first in the store and answers without computing the
    text again. A third one, without Dalsegno, checks that answer. They run on the
    CPU with a small model and need vLLM for the CPU and gguf in this Python environment: `make
    demo` in a checkout installs them.

    Example:
      dalsegno demo vllm
      dalsegno demo vllm --doc contract.txt --keep

    Exit codes: 0 at least 95% of the prompt came from the store and the answer is right, 1 not so,
    2 it could not be tried, for example without vLLM.
    """
    try:
        module = importlib.import_module("dalsegno.demo.vllm")
    except ImportError as error:
        raise UnavailableError(
            f"the demonstration cannot be loaded: {error}; `make demo` in a checkout installs vLLM"
        ) from error
    raise typer.Exit(module.run(doc=doc, model_dir=model, keep=keep, json_only=json_only))
