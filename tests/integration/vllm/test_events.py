"""KV events of `DalsegnoTier` without an engine: what is announced, withdrawn, and when."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.integration.manual_store import ManualStore
from tests.integration.vllm import tiers
from tests.integration.vllm.follower import Follower
from tests.integration.vllm.tiers import Primary, Request, counted, finished, keys
from vllm.v1.kv_offload.config import OffloadingCacheConfig

from dalsegno.integrations.vllm import events, metrics
from dalsegno.integrations.vllm.tier import DalsegnoTier

pytestmark = pytest.mark.engine
EXTRA = {"cpu_bytes_to_use": 1 << 20, "self_describing_kv_events": True}
Make = Callable[..., DalsegnoTier]


def publishing(groups: int = 1, **changes: Any) -> Any:
    """vLLM's configuration with KV events."""
    return tiers.config(
        groups, **{"enable_kv_cache_events": True, "extra_config": EXTRA, **changes}
    )


@pytest.fixture
def make(make_tier: Make) -> Iterator[Make]:
    """Opens a tier that reports events, and whose metrics never wait."""

    def opened(**settings: Any) -> DalsegnoTier:
        return make_tier(**{"of": publishing(), "enable_kv_events": True, **settings})

    # A test may undo what its own fixture changed.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "_STORE_EVERY_S", 0.0)
        yield opened


def space(tier: DalsegnoTier, group: int = 0) -> Any:
    """The namespace of a group."""
    opened = tier._backend.current
    assert opened is not None
    return opened.namespaces[group]


def present(tier: DalsegnoTier, of: Iterable[bytes]) -> set[bytes]:
    """Those of some keys of the first group that the store has."""
    asked = list(of)
    there = space(tier).peek([key[:32] for key in asked])
    return {key for key, one in zip(asked, there, strict=True) if one}


def announced(tier: DalsegnoTier, primary: Primary, of: list[bytes]) -> Follower:
    """A follower of a tier that has stored and announced these blocks."""
    follower = Follower(tier)
    Request(tier, "announced", of).keep(primary)
    follower.read()
    return follower


def announced_by_hand(tier: DalsegnoTier, manual: ManualStore, of: list[bytes]) -> Follower:
    """The same where transfers end when the test says so."""
    follower = Follower(tier)
    asked = Request(tier, "announced", of)
    asked.begin()
    asked.store(1)
    manual.end_all()
    finished(tier)
    follower.read()
    return follower


def after_a_restart(make: Make, primary: Primary, of: list[bytes]) -> DalsegnoTier:
    """A tier over a store that has these blocks of an earlier process."""
    tier = make(enable_kv_events=False)
    Request(tier, "earlier", of).keep(primary)
    assert list(tier.take_events()) == []
    tier.shutdown()
    return make()


def test_stored_blocks_are_announced_in_the_step_that_reports_them(
    manual: ManualStore, make: Make
) -> None:
    tier, ours = make(), keys(3)
    follower = Follower(tier)
    asked = Request(tier, "r", ours)
    asked.begin()
    asked.store(1)
    assert not tier.has_pending_work()
    manual.end_all()
    assert not tier.has_pending_work()
    finished(tier)
    assert tier.has_pending_work()
    follower.read()
    assert follower.blocks == set(ours)
    assert not tier.has_pending_work()
    assert list(tier.take_events()) == []


def test_blocks_that_the_store_has_already_are_announced_by_the_job_that_finds_them(
    make: Make, primary: Primary
) -> None:
    ours = keys(4)
    tier = after_a_restart(make, primary, ours[:3])
    follower = Follower(tier)
    Request(tier, "s", ours).keep(primary)
    follower.read()
    assert follower.blocks == set(ours)
    Request(tier, "t", ours).keep(primary)
    follower.read()
    assert follower.announced == 4, "announced once"


def test_blocks_of_an_earlier_process_are_announced_when_their_request_is_scheduled(
    make: Make, primary: Primary
) -> None:
    ours = keys(4)
    tier = after_a_restart(make, primary, ours)
    follower = Follower(tier)
    for name, part in (("scheduled", ours[:2]), ("aborted", ours[2:])):
        asked = Request(tier, name, part)
        asked.begin()
        asked.lookup_all()
        asked.load(1)
        follower.step()
        finished(tier)
        follower.read()
        assert follower.blocks.isdisjoint(part)
        assert not tier.has_pending_work()
        if name == "scheduled":
            follower.step("scheduled")
            assert follower.blocks == set(part)
        asked.end()
    follower.settle()
    assert follower.blocks == set(ours[:2])
    assert counted(tier.get_stats())["events_dropped_blocks"] == 2


@pytest.mark.parametrize("ends", [False, True])
def test_a_load_after_a_preemption_is_announced_a_step_later_or_when_the_request_ends(
    make: Make, primary: Primary, *, ends: bool
) -> None:
    ours = keys(2)
    tier = after_a_restart(make, primary, ours)
    follower = Follower(tier)
    asked = Request(tier, "p", ours)
    asked.begin()
    follower.step("p")
    asked.lookup_all()
    asked.load(1)
    finished(tier)
    follower.step()
    assert follower.blocks == set()
    if ends:
        asked.end()
        follower.read()
    else:
        follower.step()
    assert follower.blocks == set(ours)


def test_a_block_whose_removal_was_lost_before_its_announcement_is_withdrawn(
    make: Make, primary: Primary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "QUEUE_BLOCKS", 1)
    tier, ours = make(), keys(4)
    follower = Follower(tier)
    Request(tier, "r", ours).keep(primary)
    # All in one step: announced, and gone with no place left in the queue.
    space(tier).remove([key[:32] for key in ours[1:]])
    follower.settle()
    assert follower.blocks == set(ours[:1])


def test_published_blocks_outlive_a_comparison_that_fails(
    manual: ManualStore, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "QUEUE_BLOCKS", 1)
    tier, ours = make(), keys(6)
    follower = announced_by_hand(tier, manual, ours)
    space(tier).remove([key[:32] for key in ours[4:]])

    def broken(*_: Any) -> Any:
        raise OSError("broken")

    monkeypatch.setattr(events, "peek", broken)
    for _ in range(3):
        follower.read()
    monkeypatch.undo()
    follower.settle()
    assert follower.blocks == set(ours[:4])


def test_evicted_blocks_are_withdrawn(make: Make, primary: Primary) -> None:
    tier = make(capacity="6MiB", store={"segment": "1MiB"})
    follower, every = Follower(tier), list[bytes]()
    for number in range(60):
        ours = keys(20, prompt=f"p{number} ")
        Request(tier, f"r{number}", ours).keep(primary)
        every += ours
        follower.step()
    follower.settle()
    assert follower.announced == len(every)
    assert 0 < len(follower.blocks) < len(every)
    assert follower.blocks == present(tier, every)
    numbers = counted(tier.get_stats())
    assert numbers["events_stored_blocks"] - numbers["events_removed_blocks"] == len(
        follower.blocks
    )
    assert "events_resyncs" not in numbers


def test_a_block_removed_and_stored_again_between_two_steps_stays_announced(
    make: Make, primary: Primary
) -> None:
    tier, ours = make(), keys(3)
    follower = announced(tier, primary, ours)
    space(tier).remove([key[:32] for key in ours])
    Request(tier, "s", ours[:2]).keep(primary)
    assert tier.has_pending_work()
    follower.settle()
    assert follower.blocks == set(ours[:2])
    assert follower.announced == 3


def test_a_block_removed_before_its_announcement_is_never_announced(
    make: Make, primary: Primary
) -> None:
    tier, ours = make(), keys(3)
    follower = Follower(tier)
    Request(tier, "r", ours).keep(primary)
    space(tier).remove([ours[1][:32]])
    follower.settle()
    assert follower.blocks == {ours[0], ours[2]}
    assert follower.announced == 2


def test_after_an_overflow_everything_is_compared(
    make: Make, primary: Primary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "QUEUE_BLOCKS", 2)
    monkeypatch.setattr(events, "BLOCKS_PER_STEP", 5)
    tier, ours = make(), keys(20)
    follower = announced(tier, primary, ours)
    space(tier).remove([key[:32] for key in ours[3:14]])
    more = keys(4, prompt="more")
    Request(tier, "s", more).keep(primary)
    follower.settle()
    assert follower.blocks == {*ours[:3], *ours[14:], *more}
    assert counted(tier.get_stats())["events_resyncs"] == 1


def test_nothing_is_withdrawn_while_the_disk_hides_blocks(
    manual: ManualStore, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "QUEUE_BLOCKS", 1)
    tier, ours = make(), keys(6)
    follower = announced_by_hand(tier, manual, ours)
    space(tier).remove([key[:32] for key in ours[4:]])
    state = manual.stats()
    hidden = {**state, "device": {"reads": "suspended", "writes": "working"}}
    monkeypatch.setattr(manual, "stats", lambda: hidden)
    follower.read()
    assert follower.blocks > set(ours[:4])
    assert not tier.has_pending_work(), "vLLM would step without a pause"
    monkeypatch.undo()
    follower.read()
    follower.settle()
    assert follower.blocks == set(ours[:4])


def test_a_reset_withdraws_everything_and_new_blocks_are_announced_again(
    make: Make, primary: Primary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "BLOCKS_PER_STEP", 3)
    tier, ours = make(), keys(10)
    follower = announced(tier, primary, ours)
    for number in range(2):
        tier.drain_jobs()
        follower.read()
        assert 0 < len(follower.blocks) < 10, "a few in each step"
        again = Request(tier, f"s{number}", ours[8:])
        again.keep(primary)
        follower.settle()
        assert follower.blocks == set(ours[8:])
        Request(tier, f"t{number}", ours).keep(primary)
        follower.settle()
        assert follower.blocks == set(ours)


def test_without_a_store_everything_is_withdrawn(make: Make, primary: Primary) -> None:
    tier, ours = make(), keys(4)
    follower = announced(tier, primary, ours)
    opened, tier._backend.current = tier._backend.current, None
    follower.read()
    assert follower.blocks == set()
    tier._backend.current = opened
    Request(tier, "s", ours).keep(primary)
    follower.settle()
    assert follower.blocks == set(ours)


def test_no_more_keys_are_announced_than_are_remembered(make: Make, primary: Primary) -> None:
    tier, ours = make(kv_events_keys=5), keys(8)
    follower = Follower(tier)
    Request(tier, "r", ours).keep(primary)
    follower.settle()
    assert follower.blocks == set(ours[:5])
    assert counted(tier.get_stats())["events_dropped_blocks"] == 3
    space(tier).remove([key[:32] for key in ours[:4]])
    follower.settle()
    Request(tier, "s", ours[5:]).keep(primary)
    follower.settle()
    assert follower.blocks == set(ours[4:])


def test_each_group_is_announced_under_its_own_keys(make: Make, primary: Primary) -> None:
    tier = make(of=publishing(groups=2))
    follower = Follower(tier)
    one, other = keys(2), keys(2, group=1)
    Request(tier, "r", one, other).keep(primary)
    follower.read()
    space(tier, 1).remove([other[0][:32]])
    follower.settle()
    assert follower.blocks == {*one, other[1]}


@pytest.mark.parametrize(("blocks_per_chunk", "expected"), [(1, False), (4, True)])
def test_removals_are_promised_only_where_vllm_needs_them(
    make: Make, primary: Primary, blocks_per_chunk: int, *, expected: bool
) -> None:
    cache = OffloadingCacheConfig(tiers.BLOCK_TOKENS, blocks_per_chunk)
    tier = make(of=publishing(cache=cache))
    Request(tier, "r", keys(2)).keep(primary)
    (event,) = tier.take_events()
    # vLLM 0.28 expects no removals.
    assert getattr(event, "removal_expected", expected) is expected
    assert event.locality is None


@pytest.mark.parametrize(
    ("changes", "settings", "says"),
    [
        ({"enable_kv_cache_events": False}, {}, "reports no KV events"),
        ({"extra_config": {}}, {}, "self_describing_kv_events"),
        ({}, {"locality": "REMOTE"}, "Dynamo drops"),
        ({}, {"locality": "LOCAL"}, ""),
    ],
)
def test_settings_that_routers_cannot_use_are_a_warning(
    make: Make,
    primary: Primary,
    caplog: pytest.LogCaptureFixture,
    changes: dict[str, Any],
    settings: dict[str, Any],
    says: str,
) -> None:
    logging.getLogger("vllm.dalsegno").propagate = True
    tier = make(of=publishing(**changes), **settings)
    warned = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert (not warned) if not says else (len(warned) == 1 and says in warned[0])
    Request(tier, "r", keys(1)).keep(primary)
    assert bool(list(tier.take_events())) == (changes != {"enable_kv_cache_events": False})


def test_blocks_that_a_late_comparison_did_not_reach_stay_announced(
    make: Make, primary: Primary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "QUEUE_BLOCKS", 1)
    tier, ours = make(), keys(6)
    follower = announced(tier, primary, ours)
    space(tier).remove([key[:32] for key in ours[2:]])
    monkeypatch.setattr(events, "LATE_S", -1.0)
    follower.read()
    assert len(follower.blocks) == 5, "only the one that the queue had place for"
    monkeypatch.setattr(events, "LATE_S", 60.0)
    follower.settle()
    assert follower.blocks == set(ours[:2])
