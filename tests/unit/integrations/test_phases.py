"""What an engine says to its store."""

from __future__ import annotations

from dalsegno import CostModel
from dalsegno.integrations.common.phases import REPEAT_S, Phases
from dalsegno.integrations.common.steps import StepTime, StepWork, work_of

PROMPT = work_of([(0, 512)])
DECODE = work_of([(1000, 1), (2000, 1)])


class Model:
    """Predicts that each token takes a millisecond."""

    def step_s(self, tokens: float, pairs: float, read: float) -> float:
        """Returns the seconds of a step."""
        del pairs, read
        return tokens / 1e3


class Said:
    """Notes what is said.

    Attributes:
        is_loading: Whether blocks are being loaded.
        time: In seconds.
    """

    def __init__(self) -> None:
        """Starts with nothing."""
        self.calls: list[tuple[str, float, list[float]]] = []
        self.is_loading, self.time = False, 0.0
        self.phases = Phases(Model(), lambda: self.is_loading, lambda: self.time)

    def set_phase(self, engine: int, phase: str, *, slack_s: float, steps: list[float]) -> None:
        """Notes what an engine says."""
        assert engine > 0
        self.calls.append((phase, slack_s, steps))


def test_each_step_has_its_phase() -> None:
    said = Said()
    steps: list[tuple[StepWork | None, bool, bool, tuple[str, float, list[float]]]] = [
        (PROMPT, True, False, ("prefill", 0.512, [])),
        (PROMPT, True, True, ("prefill", 0.0, [])),
        (DECODE, True, False, ("decode", 0.0, [])),
        (DECODE, True, True, ("prefill", 0.0, [])),
        (None, True, False, ("prefill", 0.0, [])),
        (None, False, False, ("idle", 0.0, [])),
        (None, False, True, ("prefill", 0.0, [])),
    ]
    for work, computes, is_loading, expected in steps:
        said.time += REPEAT_S
        said.is_loading = is_loading
        said.phases.begin_step(said, work, computes=computes)
        assert said.calls[-1] == expected
    assert len(said.calls) == 7


def test_less_slack_is_said_at_once_and_more_is_not() -> None:
    said = Said()
    said.phases.begin_step(said, PROMPT)
    said.is_loading = True
    said.phases.begin_step(said, PROMPT)
    said.is_loading = False
    said.phases.begin_step(said, PROMPT)
    assert said.calls == [("prefill", 0.512, []), ("prefill", 0.0, [])]


def test_the_same_phase_is_not_said_again_at_once_and_no_step_is_lost() -> None:
    said = Said()
    for _ in range(100):
        said.phases.begin_step(said, DECODE)
        assert DECODE is not None
        assert PROMPT is not None
        said.phases.note_step(StepTime(DECODE, 0.003))
        said.phases.note_step(StepTime(PROMPT, 9.0))
        said.time += REPEAT_S / 10
    assert len(said.calls) == 10
    assert sum(len(steps) for _, _, steps in said.calls) in range(85, 100)
    assert all(ratio == 1.5 for _, _, steps in said.calls for ratio in steps)


def test_without_a_store_nothing_is_said_and_little_is_kept() -> None:
    said = Said()
    assert DECODE is not None
    for _ in range(1000):
        said.phases.begin_step(None, DECODE)
        said.phases.note_step(StepTime(DECODE, 0.002))
    said.phases.begin_step(said, DECODE)
    assert said.calls == [("decode", 0.0, [1.0] * 64)]


def test_the_cost_model_predicts_a_step() -> None:
    tiers = dict.fromkeys(("dram", "log", "far"), (1e-3, 1e9))
    model = CostModel(compute=(1e-3, 1e-4, 1e-12, 1e-12), tiers=tiers)
    assert abs(model.step_s(10, 0, 0) - 2e-3) < 1e-6
