"""What the scheduler's half says to the worker's half in a step, and what that reports.

The direct path needs one process per engine, so these objects are handed over as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)


@dataclass
class LoadJob:
    """Blocks of one request to load.

    Attributes:
        request_id: vLLM's name of the request.
        chain: Names of the blocks, in prefix order.
        pages: vLLM's blocks for them, one store block after the other.
        timeout_s: Seconds that the load may take.
        lease: The blocks in their places, if they are copied inside the step; else None, and the
            request waits.
        is_void: Whether the blocks must not be loaded any more: the load fails.
    """

    request_id: str
    chain: list[bytes]
    pages: list[int]
    timeout_s: float
    lease: Any = None
    is_void: bool = False


@dataclass
class SaveJob:
    """Blocks of one request to save once the step has computed them.

    Attributes:
        number: Names the job.
        request_id: vLLM's name of the request.
        chain: Names of all blocks of the prompt up to the last one to save.
        first: Position in `chain` of the first block to save.
        pages: vLLM's blocks for those to save.
    """

    number: int
    request_id: str
    chain: list[bytes]
    first: int
    pages: list[int]


@dataclass
class StepPlan(KVConnectorMetadata):  # type: ignore[misc]
    """What one step loads and saves.

    Attributes:
        loads: Loads that start.
        saves: Saves of blocks that the step computes.
        must_drain: Whether all copies of saves must end before the step: blocks that are being
            saved were given to others.
        seen_failures: How many failed step loads the scheduler's half knew of. While there are
            more, blocks may be computed from blocks that are missing, and nothing is saved.
    """

    loads: list[LoadJob] = field(default_factory=list)
    saves: list[SaveJob] = field(default_factory=list)
    must_drain: bool = False
    seen_failures: int = 0


@dataclass
class StepReport(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """What a worker, or all of them, did.

    Attributes:
        copied: Saves whose blocks are not needed any more.
        dropped: Those among them that saved nothing, and may be made again.
        loaded_blocks: Blocks that loads which ended have brought.
        loaded_bytes: Their bytes, on all workers.
        failed_blocks: Blocks that loads which ended have not brought.
        saved_blocks: Blocks that the store has taken.
        unsaved_blocks: Blocks that it could not take.
        failures: How many step loads have failed in all.
        step_bytes: Bytes that step loads have brought.
        step_s: Seconds for which steps waited for them.
        committing: Saves whose blocks are being put.
        refusal: Why the worker can neither load nor save; empty if it can.
    """

    copied: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)
    loaded_blocks: int = 0
    loaded_bytes: int = 0
    failed_blocks: int = 0
    saved_blocks: int = 0
    unsaved_blocks: int = 0
    failures: int = 0
    step_bytes: int = 0
    step_s: float = 0.0
    committing: int = 0
    refusal: str = ""

    def aggregate(self, other: KVConnectorWorkerMetadata) -> StepReport:
        """Returns the sum of two reports of one worker."""
        assert isinstance(other, StepReport)
        return StepReport(
            self.copied | other.copied,
            self.dropped | other.dropped,
            self.loaded_blocks + other.loaded_blocks,
            self.loaded_bytes + other.loaded_bytes,
            self.failed_blocks + other.failed_blocks,
            self.saved_blocks + other.saved_blocks,
            self.unsaved_blocks + other.unsaved_blocks,
            max(self.failures, other.failures),
            self.step_bytes + other.step_bytes,
            self.step_s + other.step_s,
            other.committing,
            self.refusal or other.refusal,
        )

    def __bool__(self) -> bool:
        """Whether it says anything."""
        return self != StepReport()
