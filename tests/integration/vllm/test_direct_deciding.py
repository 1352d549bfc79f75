"""What is loaded, from costs that are given or learned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("vllm")

import torch

from dalsegno import merge_located
from dalsegno.integrations.common import probe
from dalsegno.integrations.common.deciding import Engine, LoadDecider
from dalsegno.integrations.common.steps import StepTime, StepWork, work_of
from dalsegno.integrations.common.wishes import Wish
from dalsegno.integrations.vllm.direct.offering import Offers
from dalsegno.integrations.vllm.direct.planned import PlannedLoad, PlannedLoads
from dalsegno.integrations.vllm.direct.requests import DirectRequest
from dalsegno.integrations.vllm.direct.space import DirectStore
from dalsegno.integrations.vllm.direct.step import LoadJob
from dalsegno.integrations.vllm.metrics import Meter
from dalsegno.integrations.vllm.settings import ConnectorSettings
from dalsegno.profiles import ComputePrior, Profile

pytestmark = pytest.mark.engine

MIB = 1 << 20
# 1,024 tokens of 1 MiB for each 16 of them: 64 MiB.
ENGINE = Engine(layers=32, block_bytes=MIB, block_tokens=16, chunk=512, max_wait_s=0.05)
SETTINGS = ConnectorSettings(path=Path("/store"))
# A token takes 1 ms, and nothing else counts.
PRIOR = ComputePrior(step_s=1e-6, token_s=1e-3, pair_s=1e-15, read_s=1e-15)


def decider(max_wait_s: float = ENGINE.max_wait_s, **settings: Any) -> LoadDecider:
    """Decides with the given settings; tiers were measured as 4 GB/s, 1 GB/s and 0.5 GB/s."""
    engine = replace(ENGINE, max_wait_s=max_wait_s)
    return LoadDecider(replace(SETTINGS, **settings), engine, Profile({}, PRIOR, None))


def wish(tier: str, blocks: int = 60, **changes: Any) -> Wish:
    """A request of 1,024 tokens of which a tier has leading blocks."""
    return Wish([(tier, blocks)], 0, 1024, **changes)


def learn(decides: LoadDecider, tier: str, seconds: float, blocks: int = 60) -> None:
    """Lets one load of a tier take so long."""
    decides.begin_load(1, [(tier, blocks)], blocks)
    decides.end_load(1, seconds, is_whole=True)


def test_the_policy_decides_whether_costs_matter() -> None:
    slow = [(10.0,), (10.0,)]
    for policy, blocks in (("never", 0), ("always", 60), ("auto", 0)):
        decides = decider(load_policy=policy)
        for (seconds,) in slow:
            learn(decides, "log", seconds)
        assert decides.decide(wish("log")).blocks == blocks
        assert decides.decide(wish("dram")).blocks == (0 if policy == "never" else 60)


def test_a_step_waits_no_longer_than_it_may() -> None:
    for policy in ("always", "auto"):
        decides = decider(load_policy=policy)
        assert decides.decide(wish("dram", most_copied=60)).in_step
        assert not decides.decide(wish("dram")).in_step
        # A second of the disk is more than the rest of the prompt computes: `auto` loads less.
        for count in (60, 6, 60):
            learn(decides, "log", 0.9 * count / 60, count)
        decided = decides.decide(wish("log", most_read=60))
        assert decided.in_step == (policy == "auto")
        assert not decided.in_step or decided.load_s <= 0.05 + decided.step_s
        patient = decider(load_policy=policy, max_wait_s=10.0)
        learn(patient, "log", 0.9)
        assert patient.decide(wish("log", most_read=60)).in_step


def test_one_slow_load_is_believed_and_reads_find_out_that_it_was_one() -> None:
    decides = decider()
    learn(decides, "log", 0.06)
    assert decides.decide(wish("log")).blocks == 60
    learn(decides, "log", 6.0)
    for reads in range(10):  # noqa: B007 - used below
        if decides.decide(wish("log")).blocks == 60:
            break
        decides.note_read("log", 15 * MIB, 0.015)
    else:
        pytest.fail("the tier was never found again")
    assert reads in (1, 2)


def test_a_load_that_would_be_given_up_is_not_chosen() -> None:
    # 9 s of loading for 10 s of computing.
    patient, hasty = decider(load_timeout_s=20.0), decider(load_timeout_s=5.0)
    long = Wish([("log", 600)], 0, 10_001, whole_bytes=600 * MIB)
    for decides in (patient, hasty):
        learn(decides, "log", 9.0, 600)
    assert patient.decide(long).blocks == 600
    assert hasty.decide(long).blocks == 0


def test_beside_others_a_load_must_pay_for_the_step_in_which_it_ends() -> None:
    decides = decider()
    work = work_of([(0, 512)])
    assert work is not None
    alone = Wish([("dram", 60)], 0, 1024)
    beside = Wish([("dram", 60)], 0, 1024, is_beside=True)
    assert decides.decide(beside).blocks == 60
    decides.note_step(StepTime(work, 0.5))
    few = Wish([("dram", 20)], 0, 400)
    assert decides.decide(few).blocks == 20
    # 0.3 s of computing are less than what is left of a step of 0.5 s.
    assert decides.decide(replace(few, is_beside=True)).blocks == 0
    # Nor are they worth waiting for a longer request that begins meanwhile.
    assert decides.decide(replace(few, longest=400)).blocks == 0
    assert decides.decide(replace(few, longest=100)).blocks == 20
    assert decides.decide(alone).blocks == decides.decide(beside).blocks == 60


def test_a_load_that_failed_makes_nothing_faster() -> None:
    decides = decider()
    before = decides.model.load_s("log", 60 * MIB)
    decides.begin_load(1, [("log", 60)], 60)
    decides.end_load(1, 1e-6, is_whole=False)
    assert decides.model.load_s("log", 60 * MIB) == before
    decides.begin_load(2, [("log", 60)], 60)
    decides.end_load(2, 5.0, is_whole=False)
    assert decides.model.load_s("log", 60 * MIB) > before


def test_after_a_late_load_no_step_waits_until_one_was_in_time() -> None:
    decides = decider()
    decided = decides.decide(wish("log", most_read=60))
    assert decided.in_step
    decides.begin_load(1, [("log", 60)], decided.blocks)
    decides.end_load(1, 0.051, is_whole=False, was_late=True)
    assert not decides.decide(wish("log", most_read=60)).blocks
    # It is another tier that was late.
    assert decides.decide(wish("far", most_read=60)).in_step
    # A read says how fast the tier is: the request waits for the load.
    decides.note_read("log", 15 * MIB, 0.015)
    decided = decides.decide(wish("log", most_read=60))
    assert (decided.blocks, decided.in_step) == (60, False)
    # A step waits for the blocks before those of the tier.
    both = replace(wish("log", most_read=60), runs=[("far", 40), ("log", 20)])
    assert not decides.decide(both).in_step or decides.decide(both).blocks <= 40
    assert decides._step_waits.allowed(both.runs) == 40
    for needed in (1, 4, 16):
        for _ in range(needed):
            assert not decides.decide(wish("log", most_read=60)).in_step
            learn(decides, "log", 0.06)
        assert decides.decide(wish("log", most_read=60)).in_step
        decides.begin_load(1, [("log", 60)], 60)
        decides.end_load(1, 0.051, is_whole=False, was_late=True)
        decides.note_read("log", 15 * MIB, 0.015)
    # The policy that loads always loads ahead.
    always = decider(load_policy="always")
    always.begin_load(1, [("log", 60)], 60)
    always.end_load(1, 0.051, is_whole=False, was_late=True)
    decided = always.decide(wish("log", most_read=60))
    assert (decided.blocks, decided.in_step) == (60, False)


def test_what_is_queued_for_a_tier_counts() -> None:
    decides = decider()
    learn(decides, "log", 0.06)
    for number in range(2, 40):
        decides.begin_load(number, [("log", 60)], 60)
    assert decides.decide(wish("log")).blocks == 0
    for number in range(2, 40):
        decides.end_load(number, 0.0, is_whole=False)
    assert decides.decide(wish("log")).blocks == 60


def test_a_load_of_two_tiers_is_set_against_the_slower_one() -> None:
    decides = decider()
    fast = decides.model.load_s("dram", 30 * MIB)
    decides.begin_load(1, [("dram", 30), ("log", 30)], 60)
    decides.end_load(1, 3.0, is_whole=True)
    assert decides.model.load_s("dram", 30 * MIB) == fast
    assert decides.model.load_s("log", 30 * MIB) > 1.5


def test_with_many_waiting_the_engine_is_spared() -> None:
    slow = 1.5
    alone, crowded, latency = decider(), decider(), decider(load_objective="latency")
    for decides in (alone, crowded, latency):
        learn(decides, "log", slow)
    assert alone.decide(wish("log")).blocks == 0
    assert latency.decide(wish("log", waiting=1000)).blocks == 0
    assert crowded.decide(wish("log", waiting=1000)).blocks == 60
    # What others saved may be spent: the request would still wait without that.
    assert alone.decide(wish("log", waiting=2, saved_s=2.0)).blocks == 60
    throughput = decider(load_objective="throughput")
    learn(throughput, "log", slow)
    assert throughput.decide(wish("log")).blocks == 60


def test_steps_are_learned_and_kept_for_the_next_engine(tmp_path: Path) -> None:
    def create() -> LoadDecider:
        return LoadDecider(SETTINGS, ENGINE, Profile({"model": "m"}, PRIOR, tmp_path))

    decides = create()
    for at in range(30):
        tokens = 100.0 + 50 * (at % 7)
        work = StepWork(tokens, tokens * tokens / 2, tokens)
        decides.note_step(StepTime(work, 1e-2 + 1e-4 * tokens))
    decides.close()
    known = create().model.request_s(0.0, 400.0, 512.0)
    assert known == pytest.approx(0.05, rel=0.05)


@pytest.mark.parametrize(
    ("ranks", "found", "runs"),
    [
        ([[("dram", 3), ("log", 2)]], 5, [("dram", 3), ("log", 2)]),
        ([[("dram", 3), ("log", 2)]], 2, [("dram", 2)]),
        ([[("dram", 3)], [("log", 1), ("dram", 2)]], 3, [("log", 1), ("dram", 2)]),
        ([[("dram", 3)], [("dram", 1), ("far", 2)]], 3, [("dram", 1), ("far", 2)]),
        # Some have left since they were counted.
        ([[("dram", 1)], []], 2, [("log", 2)]),
    ],
)
def test_the_slowest_rank_decides_where_a_block_is(
    ranks: list[list[tuple[str, int]]], found: int, runs: list[tuple[str, int]]
) -> None:
    located = [[{"tier": tier, "blocks": count} for tier, count in rank] for rank in ranks]
    assert merge_located(located, found) == runs


def test_how_fast_a_device_computes_is_measured_at_the_start() -> None:
    rate = probe.operations_per_s(torch.float32)
    assert rate is not None
    assert 1e6 < rate < 1e16
    assert probe.operations_per_s(torch.float32, "cuda:99") is None
    assert probe.operations_per_s("no dtype") is None
    slow = ComputePrior.of_shape(32, 1024.0, is_cpu=True, operations_per_s=1e9)
    assert slow.token_s > ComputePrior.of_shape(32, 1024.0, is_cpu=True).token_s


def test_a_request_waits_for_what_another_loads_no_longer_than_it_would_compute() -> None:
    loads = PlannedLoads(1, 1.0)
    names = [bytes([number]) * 32 for number in range(8)]
    job = LoadJob(1, "first", names[:6], list(range(6)), 10.0)
    loads.add(PlannedLoad(job, DirectRequest(None, None), [], [], 0, ()), load_s=0.5)
    awaited = loads.awaited(names)
    assert awaited is not None
    assert awaited.count == 6
    assert 0.4 < awaited.left_s <= 0.5
    loads.add(PlannedLoad(job, DirectRequest(None, None), [], [], 0, ()), load_s=0.0)
    late = loads.awaited(names)
    assert late is not None
    assert late.left_s > 9, "it may take as long as it is allowed to"
    assert loads.awaited(names[6:]) is loads.awaited([]) is None
    request = DirectRequest(SimpleNamespace(request_id="second"), None)

    def most_s(policy: str, computed: int, left_s: float) -> float:
        settings = replace(SETTINGS, load_policy=policy)
        store = Mock(spec=DirectStore)
        offers = Offers(settings, store, decider(load_policy=policy), Meter(), in_steps=True)
        return offers.most_wait_s(request, computed, replace(awaited, left_s=left_s))

    # Six blocks are computed in 96 ms.
    assert most_s("auto", 0, 0.5) == 0
    assert most_s("auto", 0, 0.09) == pytest.approx(0.101, abs=1e-3)
    assert most_s("auto", 512, 0.0) > 0
    assert most_s("always", 0, 0.5) == SETTINGS.load_timeout_s
