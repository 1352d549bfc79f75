"""``dalsegno profile run``: measures a machine before traffic."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import dalsegno
from dalsegno import InvalidError, UnavailableError, profiles
from dalsegno.cli import profile, show, work
from dalsegno.cli.options import AsJson
from dalsegno.measuring import grid, running
from dalsegno.paths import local_path

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Options of the engine that are not the user's.
OURS = ("model", "kv_transfer_config")
MOST_TOKENS = 10_000_000


Model = Annotated[str, typer.Argument(metavar="MODEL", help="The model, as engines name it.")]
Options = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- OPTION=VALUE...]",
        help="Options of vLLM's engine, such as block_size=32, or a JSON object of them.",
    ),
]
Store = Annotated[
    Path,
    typer.Option(
        metavar="STORE",
        parser=local_path,
        help="The directory of the store that engines will have as their path.",
    ),
]
Capacity = Annotated[
    str | None,
    typer.Option(metavar="BYTES", help="Bytes of disk, such as 20GiB; by default what is needed."),
]
ModelLength = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="vLLM's option of that name.")
]
Lengths = Annotated[
    str | None,
    typer.Option(
        metavar="N,N,...", help="Tokens of prefixes and of new tokens; by default 256 to 4,096."
    ),
]
Times = Annotated[
    int, typer.Option(min=1, max=100, metavar="N", help="How often each is measured.")
]
Seconds = Annotated[
    float,
    typer.Option(
        min=1, max=86_400, metavar="S", help="Most seconds, without the starts of two engines."
    ),
]
Log = Annotated[
    Path | None, typer.Option(metavar="FILE", parser=local_path, help="Keep what vLLM prints.")
]


def profile_run(  # noqa: PLR0913 - the options of a command
    model: Model,
    options: Options = None,
    *,
    path: Store,
    capacity: Capacity = None,
    max_model_len: ModelLength = None,
    lengths: Lengths = None,
    times: Times = 3,
    seconds: Seconds = 120.0,
    log: Log = None,
    as_json: AsJson = False,
) -> None:
    """Measure this machine before traffic, and write the profile that engines start from.

    Starts vLLM twice, with a store of its own next to STORE. The first engine computes random
    prompts and loads them from memory. The second one loads them from the disk. So the profile
    knows both costs for this model and this machine, and the first request of the next engine is
    decided by measurements. Run it while nothing else uses the machine.

    The profile belongs to the kind of engine. Give the options of your engine that change its
    steps or blocks: dtype, block_size, kv_cache_dtype, enforce_eager, max_num_batched_tokens.

    Example:
      dalsegno profile run Qwen/Qwen3-8B --path /var/cache/kv
      dalsegno profile run ./model --path kv --lengths 512,4096,32768 --seconds 600
      dalsegno profile run ./model --path kv -- block_size=32 enforce_eager=true

    Exit codes: 0 measured, 2 it could not be, 130 interrupted.
    """
    folder = profiles.folder()
    if folder is None:
        raise UnavailableError(
            "this user has no home directory for the profile; set XDG_CACHE_HOME or "
            "DALSEGNO_PROFILES to the folder that engines use"
        )
    given = engine_options(options or ())
    if max_model_len is not None:
        given["max_model_len"] = max_model_len
    order = running.Order(
        model=model,
        store=path,
        options=given,
        lengths=_lengths(lengths) if lengths else list(grid.LENGTHS),
        is_default=lengths is None,
        times=times,
        seconds=seconds,
        capacity=None if capacity is None else dalsegno.parse_bytes(capacity),
        log=log,
    )
    known = _measured(order)
    try:
        place = profiles.write(known, folder)
    except OSError as error:
        raise UnavailableError(
            f"the profile cannot be written to {folder}: {error.strerror}; set XDG_CACHE_HOME or "
            "DALSEGNO_PROFILES to the folder that engines use"
        ) from error
    if as_json:
        show.as_json({"path": str(place), **known})
        return
    _show(known)
    print(f"\nwritten to {place}; `dalsegno profile show` shows it again")


def _measured(order: running.Order) -> dict[str, Any]:
    """Measures with a progress bar; signals end it, and nothing is left behind."""

    def measure(progress: work.Progressed) -> dict[str, Any]:
        return running.measure(order, progress)

    with _interruptible():
        return work.with_progress("measuring", measure, in_bytes=False, stop=order.stop)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Takes each of the signals that end a command for Ctrl-C, and only the first one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        for one in STOPPING:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {one: signal.signal(one, interrupt) for one in STOPPING}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def engine_options(words: Sequence[str]) -> dict[str, Any]:
    """Reads options of an engine: `name=value`, or a JSON object.

    Raises:
        InvalidError: A word is neither, or an option is ours.
    """
    given: dict[str, Any] = {}
    for word in words:
        name, is_pair, text = word.partition("=")
        if word.startswith("{"):
            given |= _object(word)
        elif is_pair and name:
            try:
                given[name.lstrip("-").replace("-", "_")] = json.loads(text)
            except ValueError:
                given[name.lstrip("-").replace("-", "_")] = text
        else:
            raise InvalidError(
                f"{word!r} is no option of an engine; give name=value, such as block_size=32, or "
                "a JSON object"
            )
    for name in OURS:
        if name in given:
            raise InvalidError(f"{name} cannot be an option of the engine: the command sets it")
    return given


def _object(word: str) -> dict[str, Any]:
    try:
        read = json.loads(word)
    except ValueError as error:
        raise InvalidError(f"{word!r} is no JSON object: {error}") from error
    return dict(read)


def _lengths(text: str) -> list[int]:
    """Reads lengths in tokens, and returns them ascending."""
    try:
        read = sorted({int(one) for one in text.split(",")})
    except ValueError:
        read = [0]
    if not 0 < read[0] <= read[-1] <= MOST_TOKENS:
        raise InvalidError(
            f"--lengths is {text!r}; it must be whole numbers of tokens, such as 256,1024,4096"
        )
    return read


def _show(known: dict[str, Any]) -> None:
    """Prints what was measured."""
    engine, table = known["engine"], known["table"]
    print(f"{engine['model']} on {engine['device']}, {engine['engine']}; store {engine['store']}\n")
    cells = {(cell["prefix"], cell["new_tokens"]): cell for cell in table["cells"]}
    layers = int(engine["layers"])
    show.table(
        ("prefix>", "new tokens>", "computed>", "a layer>", "steps>", "measured>"),
        [_cell(one, cells.get(one), layers) for one in grid.cells(table["lengths"])],
    )
    if table["skipped"]:
        print(f"{table['skipped']} prompts were not asked: no time was left; give more --seconds")
    if table["missed"]:
        print(f"{table['missed']} prompts were not loaded as a whole; give a larger --capacity")
    print()
    profile.show_tiers(known["learned"])
    print()
    profile.show_predictions(known, table["lengths"])


def _cell(
    place: tuple[int, int], cell: dict[str, Any] | None, layers: int
) -> tuple[str, str, str, str, str, str]:
    """Returns the row of a cell; empty if it was not measured."""
    prefix, new = f"{place[0]:,}", f"{place[1]:,}"
    if cell is None:
        return prefix, new, "", "", "", "0"
    a_layer = cell["seconds"] / layers / cell["steps"]
    steps, measured = str(cell["steps"]), str(cell["measured"])
    return prefix, new, profile.seconds(cell["seconds"]), profile.seconds(a_layer), steps, measured
