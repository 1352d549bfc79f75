"""All probes on the chosen stores, one cell after the other."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from dalsegno_bench.faultbench import damaging, filling, living, nodes, stores
from dalsegno_bench.faultbench.cell import Outcome, Probe, run
from dalsegno_bench.faultbench.remote import AbsentError, Origin
from dalsegno_bench.object_store import servers
from dalsegno_bench.shared_fs.kinds import missing, started
from dalsegno_bench.shared_fs.mounts import SharedFs

__all__ = [
    "PROBES",
    "Column",
    "Report",
    "columns",
    "command",
    "failed",
    "missing_for_nodes",
    "node_columns",
    "node_probe_named",
    "node_probes",
    "plan",
    "probe_named",
]

# The file system that two nodes share.
KIND = "gluster_default"
# In the order of the table.
PROBES: tuple[Probe, ...] = (*living.PROBES, *damaging.PROBES, *filling.PROBES)

# Called before each cell with its name.
Report = Callable[[str], None]


@dataclass
class Column:
    """A store, and the outcomes of its probes.

    Attributes:
        placed: The store.
        absent: Why it was not run; empty if it was.
        settings: What its adapter chose.
        outcomes: Probe's name -> its outcome.
    """

    placed: stores.Placed
    absent: str = ""
    settings: str = ""
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The store's name."""
        return self.placed.known.name

    def as_json(self) -> dict[str, Any]:
        """Returns probe -> outcome; of a store that was not run, why."""
        if self.absent:
            return {"absent": self.absent}
        return {name: one.as_json() for name, one in self.outcomes.items()}


def probe_named(name: str) -> Probe:
    """Returns a probe of one store.

    Raises:
        ValueError: There is no such probe.
    """
    return _named(PROBES, name)


def node_probes(shared: stores.Shared) -> tuple[nodes.NodeProbe, ...]:
    """Returns the probes of two nodes, by what they share."""
    return nodes.PROBES if shared == "files" else nodes.PROBES_OF_BUCKETS


def node_probe_named(name: str, shared: stores.Shared) -> nodes.NodeProbe:
    """Returns a probe of two nodes; raises as :func:`probe_named`."""
    return _named(node_probes(shared), name)


AnyProbe = TypeVar("AnyProbe", Probe, nodes.NodeProbe)


def _named(known: Sequence[AnyProbe], name: str) -> AnyProbe:
    for probe in known:
        if probe.name == name:
            return probe
    raise ValueError(f"there is no probe {name!r}; there are {', '.join(p.name for p in known)}")


def plan(
    names: Sequence[str], pythons: Sequence[str], *, shared: stores.Shared | None = None
) -> list[stores.Placed]:
    """Finds the stores of these names, all if there is none, and what runs each.

    Raises:
        ValueError: There is no such store or interpreter, or its nodes do not share files.
    """
    fitting = [name for name in stores.STORES if name not in stores.FOR_TWO]
    if shared is not None:
        fitting = list(stores.SHARING[shared])
    for name in names:
        if name in stores.STORES and name not in fitting:
            flags = {None: "without", "files": "with", "bucket": "with"}[shared]
            raise ValueError(
                f"{name} does not run {flags} --nodes in this way; there are {', '.join(fitting)}"
            )
    return stores.placed([stores.find(name) for name in names or fitting], pythons)


def missing_for_nodes(shared: stores.Shared) -> str | None:
    """Says what is missing to run the probes of two nodes here; ``None`` if nothing is."""
    return missing(KIND) if shared == "files" else servers.missing("versitygw")


@contextmanager
def _shared_by_nodes(shared: stores.Shared) -> Iterator[SharedFs]:
    """Starts what two nodes share. Until it ends, the environment has the way to its buckets."""
    if shared == "files":
        with started(KIND) as fs:
            yield fs
        return
    with servers.buckets_as_files() as (bucket, fs), patch.dict(os.environ, bucket.environment()):
        yield fs


def node_columns(
    placed: Sequence[stores.Placed],
    probes: Sequence[nodes.NodeProbe],
    *,
    shared: stores.Shared,
    seed: int,
    report: Report,
) -> list[Column]:
    """Runs the probes of two nodes, each store with servers of its own; as :func:`columns`."""
    made = [Column(one, absent=one.absent) for one in placed]
    for column in made:
        if column.absent:
            continue
        with (
            tempfile.TemporaryDirectory(
                prefix="dalsegno-faultbench-", ignore_cleanup_errors=True
            ) as inside,
            _shared_by_nodes(shared) as fs,
        ):
            _run_nodes(column, probes, (fs, seed), Path(inside), report)
    return made


def _load(column: Column, log: Path, temporary: Path | None = None) -> Origin | None:
    """Loads the store of a column; the column says why if that is impossible."""
    try:
        origin = Origin(column.placed.python, column.placed.known.adapter, log, temporary)
    except AbsentError as why:
        column.absent = f"it cannot be loaded: {why}"
        return None
    column.settings = origin.facts["settings"]
    return origin


def _run_nodes(
    column: Column,
    probes: Sequence[nodes.NodeProbe],
    where: tuple[SharedFs, int],
    folder: Path,
    report: Report,
) -> None:
    report(f"{column.name}: import")
    fs, seed = where
    origin = _load(column, folder / "messages", folder)
    if origin is None:
        return
    try:
        for probe in probes:
            report(f"{column.name}: {probe.name}")
            column.outcomes[probe.name] = nodes.run(probe, origin, fs, seed)
    finally:
        origin.close()


def columns(
    placed: Sequence[stores.Placed],
    probes: Sequence[Probe],
    *,
    seed: int,
    report: Report,
) -> list[Column]:
    """Runs the probes; a store that fails does not stop the others.

    Args:
        placed: The stores, see :func:`plan`.
        probes: The probes.
        seed: Seed of all random choices.
        report: Called before each cell.
    """
    made = [Column(one, absent=one.absent) for one in placed]
    for column in made:
        if column.absent:
            continue
        with tempfile.TemporaryDirectory(
            prefix="dalsegno-faultbench-", ignore_cleanup_errors=True
        ) as inside:
            _run_column(column, probes, seed, Path(inside), report)
    return made


def _run_column(
    column: Column, probes: Sequence[Probe], seed: int, folder: Path, report: Report
) -> None:
    report(f"{column.name}: import")
    origin = _load(column, folder / "messages")
    if origin is None:
        return
    try:
        for probe in probes:
            report(f"{column.name}: {probe.name}")
            directory = folder / probe.name
            directory.mkdir()
            column.outcomes[probe.name] = run(probe, origin, directory, seed)
            shutil.rmtree(directory, ignore_errors=True)
    finally:
        origin.close()


def command(column: Column, probe: str, seed: int, *, shared: stores.Shared | None = None) -> str:
    """Returns the one command that shows an outcome again."""
    words = ["dalsegno", "faultbench", "--store", column.name, "--probe", probe]
    words += ["--seed", str(seed)]
    if shared is not None:
        words.append("--nodes")
    if shared == "bucket":
        words.append("--bucket")
    if column.placed.python != sys.executable:
        words += ["--python", column.placed.python]
    return shlex.join(words)


def failed(made: Sequence[Column]) -> bool:
    """Whether one of our own stores is not clean; a probe that was skipped is no failure."""
    ours = [column for column in made if column.name in stores.OURS]
    return any(
        column.absent
        or any(not one.correct and not one.skipped for one in column.outcomes.values())
        for column in ours
    )
