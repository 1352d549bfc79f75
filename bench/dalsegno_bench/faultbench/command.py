"""``dalsegno faultbench``: the same faults for every store, ours and others."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from dalsegno.cli import show
from dalsegno.cli.options import AsJson
from dalsegno.paths import local_path
from dalsegno_bench.faultbench import stores, suite
from dalsegno_bench.faultbench.cell import Outcome, Probe
from dalsegno_bench.faultbench.nodes import NodeProbe

NOT_CLEAN, UNKNOWN, TERMINATED = 1, 2, 143
Named = Probe | NodeProbe
# Runs probes on stores with a seed.
Columns = Callable[[Sequence[stores.Placed], int, suite.Report], list[suite.Column]]
COUNTS = ("wrong", "lost", "hung", "leaked")

Names = Annotated[
    list[str] | None,
    typer.Option(
        "--store", metavar="NAME", help="Only this store, or MODULE:CLASS; may be repeated."
    ),
]
Probes = Annotated[
    list[str] | None,
    typer.Option("--probe", metavar="NAME", help="Only this probe; may be repeated."),
]
Pythons = Annotated[
    list[str] | None,
    typer.Option(
        "--python",
        metavar="PATH",
        help="Another environment's interpreter, for the stores that are not installed in this"
        " one; may be repeated.",
    ),
]


def faultbench(  # noqa: PLR0913 - the options of the command
    *,
    store: Names = None,
    probe: Probes = None,
    python: Pythons = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random choices.")] = 1,
    listing: Annotated[
        bool, typer.Option("--list", help="List the stores and probes, and stop.")
    ] = False,
    two_nodes: Annotated[
        bool,
        typer.Option("--nodes", help="Two nodes that share a GlusterFS, started here as root."),
    ] = False,
    bucket: Annotated[
        bool, typer.Option("--bucket", help="With --nodes: they share a bucket of an S3 server.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Inject the same faults into every store, and count what fails.

    Each probe is a fault that happens in service: the process is killed while it writes, a bit
    flips on the disk, files are truncated, swapped or emptied, the disk fills up, the load is far
    too high. Then the probe gets what the store acknowledged. A cell of the table counts

    wrong: blocks returned with bytes that are not theirs;
    lost: blocks acknowledged, not touched by the fault, and gone, or that can no longer be stored;
    hung: calls that did not end in time, or in which the store's process died;
    leaked: MiB over the capacity, and files, open files and threads that are left.

    Stores of engines run where their package is installed: here, or in an environment that you
    name with --python. The others are listed as absent. Every store gets an empty directory under
    TMPDIR. Every cell that is not correct comes with the command that reproduces it. A full disk is
    a small file system, which only root can mount; else that probe is skipped.

    With --nodes, other probes run on stores whose nodes share files: one node puts, the other one
    gets, while shared files are damaged, a node is killed, or the file system stops. With --bucket
    they share a bucket.

    Example:
      dalsegno faultbench --store dalsegno
      dalsegno faultbench --python .envs/vllm/bin/python --python .envs/lmcache/bin/python
      dalsegno faultbench --store vllm-fs --probe bit-flip --python .envs/vllm/bin/python

    Exit codes: 0 our own stores are clean, 1 they are not, 2 no such store or probe. Failures of
    other stores are reported and do not change it.
    """
    shared: stores.Shared | None = None
    if two_nodes or bucket:
        shared = "bucket" if bucket else "files"
    try:
        probes, columns = _of_stores(probe or ()) if shared is None else _of_nodes(probe, shared)
        pythons = [str(local_path(one)) for one in python or ()]
        placed = suite.plan(store or (), pythons, shared=shared)
    except ValueError as error:
        print(f"dalsegno: {error}", file=sys.stderr)
        raise typer.Exit(UNKNOWN) from None
    if listing:
        _list(placed, probes)
        return
    lacking = suite.missing_for_nodes(shared) if shared else None
    if lacking is not None:
        print(f"dalsegno: {lacking}", file=sys.stderr)
        raise typer.Exit(UNKNOWN)
    made = _run(placed, lambda placed, report: columns(placed, seed, report), len(probes))
    if as_json:
        show.as_json({column.name: column.as_json() for column in made})
    else:
        _print(made, probes, seed, shared=shared)
    if suite.failed(made):
        raise typer.Exit(NOT_CLEAN)


def _of_stores(names: Sequence[str]) -> tuple[Sequence[Named], Columns]:
    """Returns the probes of one store, and what runs them."""
    probes = [suite.probe_named(name) for name in names] or list(suite.PROBES)
    return probes, lambda placed, seed, report: suite.columns(
        placed, probes, seed=seed, report=report
    )


def _of_nodes(
    names: Sequence[str] | None, shared: stores.Shared
) -> tuple[Sequence[Named], Columns]:
    """The same of two nodes."""
    probes = [suite.node_probe_named(name, shared) for name in names or ()]
    probes = probes or list(suite.node_probes(shared))
    return probes, lambda placed, seed, report: suite.node_columns(
        placed, probes, shared=shared, seed=seed, report=report
    )


def _run(
    placed: Sequence[stores.Placed],
    columns: Callable[[Sequence[stores.Placed], suite.Report], list[suite.Column]],
    probes: int,
) -> list[suite.Column]:
    """Runs all cells, with a progress bar in a terminal."""
    # Mounts and processes are removed on SIGTERM too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    target = show.console(stderr=True)
    bars = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    cells = sum(1 + probes for one in placed if not one.absent)
    with Progress(*bars, console=target, transient=True, disable=not target.is_terminal) as bar:
        task = bar.add_task("", total=cells, completed=-1)

        def report(what: str) -> None:
            bar.update(task, description=what, advance=1)

        return columns(placed, report)


def _list(placed: Sequence[stores.Placed], probes: Sequence[Named]) -> None:
    rows = [(one.known.name, one.absent or one.version or "built in") for one in placed]
    show.table(("store", "version"), rows)
    print()
    show.table(("probe", "what happens"), [(probe.name, probe.summary) for probe in probes])


def cell_text(outcome: Outcome) -> str:
    """Returns the outcome of a probe in a few words."""
    if outcome.skipped:
        return "skipped"
    counts = [(getattr(outcome, name), name) for name in COUNTS]
    return ", ".join(f"{count} {name}" for count, name in counts if count) or "correct"


def _print(
    made: Sequence[suite.Column],
    probes: Sequence[Named],
    seed: int,
    *,
    shared: stores.Shared | None,
) -> None:
    ran = [column for column in made if not column.absent]
    if ran:
        rows = [
            (probe.name, *(cell_text(column.outcomes[probe.name]) for column in ran))
            for probe in probes
        ]
        show.table(("probe", *(column.name for column in ran)), rows)
        print("\nstores:")
        for column in ran:
            version = f"{column.placed.known.package} {column.placed.version}; "
            print(f"  {column.name}: {version if column.placed.version else ''}{column.settings}")
    for column in made:
        if column.absent:
            print(f"  {column.name}: absent: {column.absent}")
    _costs(ran)
    _details(ran, probes, lambda column, name: suite.command(column, name, seed, shared=shared))


def _costs(ran: Sequence[suite.Column]) -> None:
    """Prints what a put costs in an empty and in a full store."""
    rows = [
        (column.name, f"{figures['empty_ms']:.2f}", f"{figures['full_ms']:.2f}", figures["ratio"])
        for column in ran
        if "full-cost" in column.outcomes
        and "ratio" in (figures := column.outcomes["full-cost"].figures)
    ]
    if rows:
        print("\nmilliseconds of a put of 32 blocks of 4 KiB, median:")
        show.table(("store", "empty>", "full>", "ratio>"), rows)


def _details(
    ran: Sequence[suite.Column],
    probes: Sequence[Named],
    command: Callable[[suite.Column, str], str],
) -> None:
    """Prints what was seen, and the command that reproduces it."""
    for column in ran:
        for probe in probes:
            outcome = column.outcomes[probe.name]
            if outcome.correct and not outcome.notes:
                continue
            print(f"\n{column.name}, {probe.name}: {cell_text(outcome)}")
            for note in [outcome.skipped, *outcome.notes]:
                if note:
                    print(f"  {show.plain(note)}")
            if not outcome.correct and not outcome.skipped:
                print(f"  $ {command(column, probe.name)}")
