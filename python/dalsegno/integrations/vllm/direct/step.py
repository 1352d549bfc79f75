"""What the scheduler's half says to the workers' halves in a step, and what they report.

A worker may be a process of its own, so these objects can be pickled. A lease cannot: such a worker
takes one of its own, of blocks that the scheduler's lease keeps in their places.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from dalsegno.integrations.common.meeting import BackSpan
from dalsegno.integrations.common.steps import StepTime, StepWork

_T = TypeVar("_T")


@dataclass(frozen=True)
class BlockSpace:
    """Where workers find the blocks, if they are processes of their own.

    Attributes:
        place: The server of the store.
        settings: With which it is opened.
        fields: Those of each namespace: one for each rank, or one if all ranks have equal bytes.
        shape: Layers and sizes of the blocks of a rank.
    """

    place: str
    settings: Mapping[str, Any]
    fields: tuple[Mapping[str, str], ...]
    shape: Mapping[str, Any]


class LoadWay(enum.Enum):
    """When blocks are loaded, and from where.

    Attributes:
        AHEAD: While the request waits, from wherever they are.
        COPY: Inside the step, from places where a lease keeps them.
        READ: Inside the step, from wherever they are.
        BACK: While the request computes those before them, from the last one on.
    """

    AHEAD = "ahead"
    COPY = "copy"
    READ = "read"
    BACK = "back"


@dataclass
class LoadJob:
    """Blocks of one request to load.

    Attributes:
        number: Names the job.
        request_id: vLLM's name of the request.
        chain: Names of the blocks, in prefix order.
        pages: vLLM's blocks for them, one store block after the other.
        timeout_s: Seconds that the load may take.
        wait_s: Seconds for which its step waits for all of its loads, before this one fails.
        way: When and from where they are loaded.
        lease: The blocks in their places, for a worker in the process of the scheduler's half.
        is_void: Whether the blocks must not be loaded any more: the load fails.
        part: Blocks that are loaded together, from the last ones on; 0 for all of them.
        layer_s: Seconds that its step computes each layer; 0 if no step waits for reads.
    """

    number: int
    request_id: str
    chain: list[bytes]
    pages: list[int]
    timeout_s: float
    wait_s: float = 0.0
    way: LoadWay = LoadWay.AHEAD
    lease: Any = None
    is_void: bool = False
    part: int = 0
    layer_s: float = 0.0

    @property
    def is_in_step(self) -> bool:
        """Whether a step waits for the blocks, not their request."""
        return self.way in (LoadWay.COPY, LoadWay.READ)

    def __getstate__(self) -> dict[str, Any]:
        """Returns what another process gets."""
        return {**self.__dict__, "lease": None}


@dataclass
class SaveJob:
    """Blocks of one request to save once the step has computed them.

    Attributes:
        number: Names the job.
        chain: Names of all blocks of the prompt up to the last one to save.
        first: Position in `chain` of the first block to save.
        pages: vLLM's blocks for those to save.
        is_written: Whether they are written to the disk, not only kept in the pool.
    """

    number: int
    chain: list[bytes]
    first: int
    pages: list[int]
    is_written: bool = True


@dataclass
class StepPlan(KVConnectorMetadata):  # type: ignore[misc]
    """What one step loads and saves.

    Attributes:
        loads: Loads that start.
        saves: Saves of blocks that the step computes.
        void_loads: Loads up to this number bring nothing: their blocks may be of weights that were
            replaced.
        confirmed: Earlier saves whose blocks were copied by all workers and are right: they are put
            into the store.
        void: Earlier saves that put nothing.
        must_drain: Whether all copies of saves must end before the step: blocks that are being
            saved were given to others.
        frontiers: Of loads of the backs of prompts, the position of the first block that neither
            this step nor one before it computes.
        stopped: Loads of backs that end before the step: it may use their blocks.
        space: Where the blocks are; None if nothing may be loaded or stored.
        work: What the step computes; None for nothing.
    """

    loads: list[LoadJob] = field(default_factory=list)
    saves: list[SaveJob] = field(default_factory=list)
    void_loads: int = 0
    confirmed: list[int] = field(default_factory=list)
    void: list[int] = field(default_factory=list)
    must_drain: bool = False
    frontiers: dict[int, int] = field(default_factory=dict)
    stopped: list[int] = field(default_factory=list)
    space: BlockSpace | None = None
    work: StepWork | None = None

    @property
    def begins_back(self) -> bool:
        """Whether a load of the back of a prompt starts."""
        return any(job.way is LoadWay.BACK for job in self.loads)


@dataclass(frozen=True)
class LoadEnd:
    """What one worker says of a load that has ended.

    Attributes:
        count: How many leading blocks it has brought.
        seconds: How long it took; 0 if it did not begin.
        was_late: Whether it was given up because its step would have waited too long.
    """

    count: int
    seconds: float = 0.0
    was_late: bool = False


@dataclass
class StepReport(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """What the workers did in a step. The lists have an item for each worker that has come so far.

    Attributes:
        loads: How a load has ended.
        refused: Loads that were not begun, as too many transfers were queued.
        copied: Whether all layers of a save were copied; vLLM's blocks are not needed any more.
        puts: How many blocks of a save the store has taken, and how many it could not take.
        backs: What is loaded of the backs of prompts.
        steps: How long steps computed.
        refusal: Why a worker can neither load nor save; empty if all can.
    """

    loads: dict[int, list[LoadEnd]] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    copied: dict[int, list[bool]] = field(default_factory=dict)
    puts: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    backs: dict[int, list[BackSpan]] = field(default_factory=dict)
    steps: list[StepTime] = field(default_factory=list)
    refusal: str = ""

    def aggregate(self, other: KVConnectorWorkerMetadata) -> StepReport:
        """Returns what two sets of workers did in the same step."""
        assert isinstance(other, StepReport)
        return StepReport(
            _joined(self.loads, other.loads),
            self.refused | other.refused,
            _joined(self.copied, other.copied),
            _joined(self.puts, other.puts),
            _joined(self.backs, other.backs),
            max(self.steps, other.steps, key=lambda steps: sum(one.seconds for one in steps)),
            self.refusal or other.refusal,
        )

    def __bool__(self) -> bool:
        """Whether it says anything."""
        return self != StepReport()


def _joined(one: Mapping[int, list[_T]], other: Mapping[int, list[_T]]) -> dict[int, list[_T]]:
    """Returns the lists of both."""
    return {
        number: [*one.get(number, ()), *other.get(number, ())]
        for number in one.keys() | other.keys()
    }
