"""SGLang's scheduler as the hooks of steps see it, with a clock of its own."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from dalsegno.integrations.sglang import steps


def extend(*requests: tuple[int, int], mode: ForwardMode = ForwardMode.EXTEND) -> Any:
    """A batch that computes prompts: of each request the tokens before, and the new ones."""
    return ScheduleBatch(
        reqs=[SimpleNamespace()] * len(requests),
        forward_mode=mode,
        prefix_lens=[before for before, _ in requests],
        extend_lens=[new for _, new in requests],
        spec_algorithm=SpeculativeAlgorithm.NONE,
    )


def decode(lengths: Sequence[int], **changes: Any) -> Any:
    """A batch that computes one token of each request; lengths include it."""
    fields: dict[str, Any] = {"spec_algorithm": SpeculativeAlgorithm.NONE, **changes}
    return ScheduleBatch(
        reqs=[SimpleNamespace()] * len(lengths),
        forward_mode=ForwardMode.DECODE,
        seq_lens_cpu=torch.tensor(lengths),
        **fields,
    )


class FakeScheduler:
    """Runs batches in no time but what is said.

    Attributes:
        watch: What the hooks report to.
        now: Its clock, in seconds.
    """

    def __init__(self) -> None:
        self.forward_ct, self.waiting_queue, self.now = 0, list[Any](), 100.0
        self.watch = steps.StepWatch(lambda: self.now)
        self.watch.is_registered = True

    def begin(self, batch: Any) -> Any:
        """Begins a step; returns what SGLang keeps of the batch until its result comes."""
        steps._before_step(self, batch)
        self.forward_ct += 1
        batch.forward_iter = self.forward_ct
        return batch.copy()

    def end(self, kept: Any) -> None:
        """Processes the result of a step."""
        steps._after_step(None, self, kept, None)

    def step(self, batch: Any, seconds: float) -> None:
        """Runs a batch."""
        kept = self.begin(batch)
        self.now += seconds
        self.end(kept)

    def learn(self, token_s: float, count: int = 30) -> None:
        """Runs prompts of which a token takes so long."""
        for at in range(count):
            tokens, before = 100 + 50 * (at % 7), 400 * (at % 3)
            self.step(extend((before, tokens)), tokens * token_s)
