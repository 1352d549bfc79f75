"""An engine that computes the front of each prompt while it loads the back (`processes.Program`).

Parts come as fast, and fail, as a step of the list says. The first model runner of the CPU plays
what a second one would count, and asynchronous scheduling: both are for GPUs.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from tests.integration.vllm import direct_engine

from dalsegno.integrations.vllm import demo_engine

# Blocks that are predicted to be computed, as a part of all.
FRONT = 0.5


@dataclass
class Pace:
    """How parts come.

    Attributes:
        part_s: Seconds of a part, one after the other.
        good: How many come before one fails.
        is_swapped: Whether the bytes of other blocks come.
        in_step: Whether all blocks are loaded inside a step instead; if none is good, they fail.
        jumps: Tokens of the front and of the whole, of each jump.
        begun: How many parts were begun.
        ends_at: When the last one comes.
    """

    part_s: float = 0.0
    good: int = 1 << 30
    is_swapped: bool = False
    in_step: bool = False
    jumps: list[tuple[int, int]] = field(default_factory=list)
    begun: int = 0
    ends_at: float = 0.0

    def next_end(self) -> float:
        """Returns when the next part comes."""
        self.begun += 1
        self.ends_at = max(self.ends_at, time.monotonic()) + self.part_s
        return self.ends_at


class PacedLoad:
    """A part that comes when it is its turn."""

    def __init__(self, start: Callable[[], Any], pace: Pace) -> None:
        self._start, self._fails = start, pace.begun >= pace.good
        self._due, self._gone, self._ended = pace.next_end(), threading.Event(), threading.Event()
        self._count = 0
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        is_cancelled = self._gone.wait(max(0.0, self._due - time.monotonic()))
        if not is_cancelled and not self._fails:
            load = self._start()
            load.wait()
            self._count = load.result()
        with self._lock:
            self._ended.set()
        for callback in self._callbacks:
            callback()

    throttled = False

    def done(self) -> bool:
        return self._ended.is_set()

    def wait(self) -> bool:
        return self._ended.wait()

    def withdraw(self) -> bool:
        self._gone.set()
        return False

    def result(self) -> int:
        return self._count

    def on_end(self, callback: Callable[[], object]) -> None:
        with self._lock:
            if not self._ended.is_set():
                self._callbacks.append(callback)
                return
        callback()


def run(spec: dict[str, Any], orders: Connection, answers: Connection) -> None:
    """Runs the engine.

    Args:
        spec: As of `direct_engine.run`, with other `steps`: `{"ask": prompts}`, with `"apart":
            steps` one after the other; `{"forget": true}`; `{"abort": prompts, "after": steps}`;
            `{"pace": changes}` of a `Pace` from now on. And `as`: `second_runner` counts tokens as
            the second model runner does, `asynchronous` schedules a step before the one before it
            has ended.
        orders: Not used.
        answers: Takes one record for each `ask`.
    """
    del orders
    if "asynchronous" in spec["as"]:
        schedule_ahead()
    pace = Pace()
    follow(pace)
    from vllm import LLM

    llm = LLM(
        model=spec["model"],
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        disable_log_stats=False,
        kv_transfer_config=spec["kv_transfer_config"],
        **{"max_model_len": 2048, **spec["options"]},
    )
    wrong: list[str] = []
    core = llm.llm_engine.engine_core.engine_core
    if "second_runner" in spec["as"]:
        count_as_second_runner(core.scheduler, wrong)
    engine = direct_engine.Engine(llm, Counter())
    for step in spec["steps"]:
        if "ask" in step:
            pace.jumps, pace.begun = [], 0
            tokens = step.get("tokens", direct_engine.ANSWER_TOKENS)
            if "apart" in step:
                record = engine.ask_apart(step["ask"], step["apart"], tokens)
            else:
                record = engine.ask(step["ask"], tokens)
            record |= {"jumps": pace.jumps, "begun": pace.begun, "wrong": wrong}
            record["scheduler"] = type(core.scheduler).__name__
            answers.send_bytes(json.dumps(record).encode())
        elif "abort" in step:
            engine.abort(step["abort"], step["after"])
        elif "pace" in step:
            vars(pace).update(vars(Pace()) | step["pace"])
        else:
            demo_engine.settle(llm)
            assert llm.reset_prefix_cache()
    llm.llm_engine.engine_core.shutdown()


def follow(pace: Pace) -> None:
    """Decides for both ends wherever they are possible, paces parts, and records jumps."""
    from dalsegno.integrations.common.deciding import Decision, LoadDecider
    from dalsegno.integrations.vllm.direct.worker import DirectWorker
    from dalsegno.integrations.vllm.scheduling import JumpingScheduler

    begin, jump = DirectWorker._begin_part, JumpingScheduler._jump
    begin_load = DirectWorker._begin_load

    def decide(self: LoadDecider, wish: Any) -> Decision:
        front = int(wish.blocks * FRONT)
        if pace.in_step and front:
            return Decision(wish.blocks, in_step=True, load_s=0.1, step_s=10.0, wait_s=0.05)
        if not wish.both_ends or not front:
            return Decision(0)
        return Decision(wish.blocks, load_s=0.1, front=front, part=max(1, wish.blocks // 16))

    def paced(self: DirectWorker, job: Any, after: Any) -> Callable[[int, int], Any]:
        usual = begin(self, job, after)

        def start(first: int, end: int) -> Any:
            if pace.is_swapped:
                job.chain[first:end] = job.chain[: end - first]
            return PacedLoad(lambda: usual(first, end), pace)

        return start

    def in_step(self: DirectWorker, job: Any) -> Any:
        if not pace.good:
            raise RuntimeError(f"a planted failure of load {job.number}")
        return begin_load(self, job)

    def noted(self: JumpingScheduler, request: Any, tokens: int) -> None:
        pace.jumps.append((request.num_computed_tokens, tokens))
        jump(self, request, tokens)

    LoadDecider.decide = decide  # type: ignore[method-assign]
    DirectWorker._begin_load = in_step  # type: ignore[method-assign]
    DirectWorker._begin_part = paced  # type: ignore[method-assign]
    JumpingScheduler._jump = noted  # type: ignore[method-assign]


def schedule_ahead() -> None:
    """Lets a CPU engine schedule a step while another one runs, as a GPU's does."""
    from vllm.platforms.cpu import CpuPlatform

    usual = CpuPlatform.check_and_update_config.__func__

    def changed(cls: type, config: Any) -> None:
        usual(cls, config)
        config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(changed)


def count_as_second_runner(scheduler: Any, wrong: list[str]) -> None:
    """Counts tokens as the second model runner does, and notes where the scheduler disagrees.

    That runner sets its count where a request is new to it, and adds what is scheduled.
    """
    # The first model runner takes a known request that is sent as a new one, too.
    scheduler.use_v2_model_runner = True
    counts: dict[str, int] = {}
    schedule = scheduler.schedule

    def counted(*arguments: Any, **options: Any) -> Any:
        output = schedule(*arguments, **options)
        counts.update({new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs})
        known = output.scheduled_cached_reqs
        for name, computed in zip(known.req_ids, known.num_computed_tokens, strict=True):
            if counts[name] != computed:
                wrong.append(f"the runner would be at {counts[name]}, not at {computed}")
        for name, tokens in output.num_scheduled_tokens.items():
            counts[name] += tokens
        return output

    scheduler.schedule = counted
