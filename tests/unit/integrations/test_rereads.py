"""Reads of blocks that were not worth loading."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dalsegno
from dalsegno import UnavailableError
from dalsegno.integrations.common.deciding import Engine, LoadDecider, Shown
from dalsegno.integrations.common.rereads import IN_A_ROW, SELDOM, Rereads
from dalsegno.integrations.common.running import Back
from dalsegno.integrations.common.settings import StoreSettings
from dalsegno.integrations.common.wishes import Wish, part
from dalsegno.profiles import ComputePrior, Profile

ENGINE = Engine(layers=1, block_bytes=4096, block_tokens=16, chunk=512)
# 1,024 tokens of 64 blocks with 256 KiB take a second.
PRIOR = ComputePrior(1e-9, 1e-3, 1e-15, 1e-15)
CHAIN = [number.to_bytes(32, "little") for number in range(64)]
RUNS = [("log", 64)]


class Transfer:
    """A read that ends when a test says so."""

    def __init__(self, there: list[bool]) -> None:
        self.there, self.is_done, self.throttled = there, False, False
        self.then: Callable[[], None] = lambda: None

    def on_end(self, then: Callable[[], None]) -> None:
        self.then = then

    def done(self) -> bool:
        return self.is_done

    def result(self) -> list[bool]:
        return self.there

    def end(self) -> None:
        self.is_done = True
        self.then()


class Space:
    """A namespace whose reads are ended by hand."""

    block_bytes = 4096

    def __init__(self) -> None:
        self.reads: list[Transfer] = []
        self.asked: list[tuple[int, float]] = []
        self.names: list[bytes] = []
        self.present = True

    def submit_get(self, chain: Sequence[bytes], out: Sequence[Any], *, timeout_s: float) -> Any:
        assert len(chain) == len(out)
        assert 0.05 <= timeout_s <= 10
        self.asked.append((len(chain), timeout_s))
        self.names = list(chain)
        self.reads.append(Transfer([self.present] * len(chain)))
        return self.reads[-1]


def decider() -> LoadDecider:
    return LoadDecider(StoreSettings(path=Path("/store")), ENGINE, Profile({}, PRIOR, None))


def steady(decides: LoadDecider) -> None:
    """Lets reads and samples take as long as is expected, and show nothing."""
    decides.note_read = lambda *_, **__: "nothing"  # type: ignore[method-assign]
    decides.note_sample = lambda *_: False  # type: ignore[method-assign]
    decides.is_early = lambda *_: False  # type: ignore[method-assign]


def test_a_quarter_is_read_one_read_at_a_time_and_little_in_the_end() -> None:
    decides, space = decider(), Space()
    steady(decides)
    rereads = Rereads(decides)
    rereads.offer([space], CHAIN, RUNS, 0.001)
    rereads.offer([space], CHAIN, RUNS, 0.001)
    assert space.asked == [(16, 0.05)]
    for _ in range(1000):
        space.reads[-1].end()
        rereads.offer([space], CHAIN, RUNS, 1000.0)
    # The second request found the first read under way.
    counts = [count for count, _ in space.asked]
    reads = [count for count in counts if count > 1]
    assert len(counts) == 1001
    assert IN_A_ROW - 1 + 1000 // SELDOM - 1 <= len(reads) <= IN_A_ROW + 1000 // SELDOM
    # Two sizes show what a byte takes, and what a read takes without any.
    assert set(reads[::2]) == {16}
    assert set(reads[1::2]) == {4}
    assert space.asked[-1][1] == 10.0
    rereads.note_loaded(RUNS)
    for _ in range(3):
        space.reads[-1].end()
        rereads.offer([space], CHAIN, RUNS, 1.0)
        assert space.asked[-1][0] > 1


def test_what_a_read_has_shown_decides_how_much_the_next_ones_read() -> None:
    decides, space = decider(), Space()
    steady(decides)
    rereads = Rereads(decides)

    def counts(number: int) -> list[int]:
        """Serves requests; returns how many blocks are read."""
        before = len(space.asked)
        for _ in range(number):
            rereads.offer([space], CHAIN, RUNS, 1.0)
            space.reads[-1].end()
            rereads.take()
        return [count for count, _ in space.asked[before:]]

    assert counts(18) == [16, 4] * 8 + [1, 1]
    decides.note_sample = lambda *_: True  # type: ignore[method-assign]
    # Behind an early sample two requests are used.
    assert counts(7) == [1, 16, 4, 1, 16, 4, 1]
    # A surprise is confirmed by a larger read.
    decides.note_sample = lambda *_: False  # type: ignore[method-assign]
    assert counts(2) == [16, 4]
    decides.note_read = lambda *_, **__: "surprise"  # type: ignore[method-assign]
    assert sum(count > 1 for count in counts(32)) == 17
    # A change is measured as if it was the beginning.
    decides.note_read = lambda *_, **__: "change"  # type: ignore[method-assign]
    assert counts(40) == [16, 4] * 20
    # Small reads that are early say little.
    decides.is_early = lambda *_: True  # type: ignore[method-assign]
    decides.note_read = lambda *_, **__: "nothing"  # type: ignore[method-assign]
    before = counts(34)
    assert before[:2] == [16, 4]
    assert before[2:16] == [16] * 14


def test_what_was_read_is_learned_and_what_was_not_is_not() -> None:
    decides, space = decider(), Space()
    rereads = Rereads(decides)
    before = decides.model.explain()["log"]["measured"]
    for present, measured in ((False, 0), (True, 1)):
        space.present = present
        rereads.offer([space], CHAIN, RUNS, 1.0)
        time.sleep(0.01)
        space.reads[-1].end()
        rereads.take()
        assert decides.model.explain()["log"]["measured"] == before + measured
    assert decides.model.load_s("log", 16 * 4096) >= 0.01


def test_a_large_read_that_is_given_up_took_at_least_so_long() -> None:
    decides, space = decider(), Space()
    rereads, learned = Rereads(decides), list[tuple[Any, ...]]()

    def note(tier: str, size: int, seconds: float, *, is_whole: bool) -> Shown:
        learned.append((tier, size // 4096, is_whole, seconds))
        return "nothing"

    decides.note_read = note  # type: ignore[method-assign, assignment]
    # Every second one is small.
    for missing, waited_s in ((1, 0.0), (1, 0.06), (16, 0.06), (0, 0.0), (1, 0.06)):
        rereads.offer([space], CHAIN, RUNS, 0.001)
        time.sleep(waited_s)
        transfer = space.reads[-1]
        transfer.there = [at >= missing for at in range(len(transfer.there))]
        transfer.end()
        rereads.take()
    # Of the first one a block was not there any more.
    expected = [("log", 16, False), ("log", 4, True), ("log", 16, False)]
    assert [one[:3] for one in learned] == expected
    assert 0.06 <= learned[0][-1] < 10


def test_samples_are_small_and_not_of_a_far_tier() -> None:
    decides = decider()
    steady(decides)
    for tier, blocks, has_samples in (("log", 64, True), ("log", 15, False), ("far", 64, False)):
        rereads, space = Rereads(decides), Space()
        for _ in range(IN_A_ROW + SELDOM):
            rereads.offer([space], CHAIN, [(tier, blocks)], 1.0)
            if not space.reads[-1].done():
                space.reads[-1].end()
        assert len(space.asked) == IN_A_ROW + (SELDOM if has_samples else 1)


def test_a_read_is_not_lost_while_another_one_is_under_way() -> None:
    decides, space = decider(), Space()
    steady(decides)
    rereads = Rereads(decides)
    for _ in range(2 * IN_A_ROW):
        for _ in range(3):
            rereads.offer([space], CHAIN, RUNS, 1.0)
        space.reads[-1].end()
    assert [count for count, _ in space.asked] == [16, 4] * 8 + [1] * 15 + [16]


def test_loads_that_somebody_waits_for_are_not_disturbed() -> None:
    decides, space = decider(), Space()
    rereads = Rereads(decides)
    decides.begin_load(1, RUNS, 64)
    rereads.offer([space], CHAIN, RUNS, 1.0)
    assert not space.asked
    rereads.offer([space], CHAIN, [("far", 64)], 1.0)
    assert len(space.asked) == 1


def test_a_store_that_refuses_is_no_error() -> None:
    class Closed(Space):
        def submit_get(self, *_: Any, **__: Any) -> Any:
            raise UnavailableError("closed")

    rereads, space = Rereads(decider()), Space()
    rereads.offer([Closed()], CHAIN, RUNS, 1.0)
    rereads.take()
    rereads.offer([space], CHAIN, RUNS, 1.0)
    assert len(space.asked) == 1


def test_the_tiers_of_what_was_declined() -> None:
    runs = [("dram", 10), ("log", 20), ("far", 5)]
    assert part(runs, 0) == runs
    assert part(runs, 15) == [("log", 15), ("far", 5)]
    assert part(runs, 30) == [("far", 5)]
    assert part(runs, 0, 15) == [("dram", 10), ("log", 5)]


def test_the_longest_run_is_read_that_the_request_does_not_load() -> None:
    decides, runs = decider(), [("dram", 4), ("log", 40), ("far", 20)]
    for loaded, tier, first in (((), "log", 4), ([("log", 3)], "far", 44)):
        space = Space()
        Rereads(decides).offer([space], CHAIN, runs, 1.0, loaded)
        assert list(decides.read) == [tier]
        assert space.names[0] == CHAIN[first]
    space = Space()
    Rereads(decides).offer([space], CHAIN, runs, 1.0, runs)
    assert not space.asked


def test_early_backs_ask_for_large_reads_of_two_in_a_row_and_then_of_few() -> None:
    decides, space = decider(), Space()
    steady(decides)
    decides.is_early = lambda *back: back[-1] < 0.5  # type: ignore[method-assign]
    rereads = Rereads(decides)

    def serve(seconds: float, blocks: int = 16) -> None:
        back = Back("log", blocks * 4096, seconds)
        rereads.offer_behind([space], CHAIN, RUNS, 1.0, back)
        if space.reads:
            space.reads[-1].end()
        rereads.take()

    serve(1.0)
    assert not space.asked
    for _ in range(SELDOM):
        serve(0.1)
    assert [count for count, _ in space.asked] == [16] * 3
    serve(1.0)
    serve(0.1, blocks=17)
    assert len(space.asked) == 3
    serve(0.1)
    assert len(space.asked) == 4


def test_a_tier_that_became_fast_is_found_after_two_requests(tmp_path: Path) -> None:
    """With a real store: reads show that it is faster than what was learned."""
    decides = decider()
    with dalsegno.open(tmp_path / "store", capacity="64MiB", dram=0) as store:
        space = store.namespace({"model": "m"}, layers=1, slice_bytes=4096)
        space.put_batch(CHAIN, [bytes(4096) for _ in CHAIN])
        for number in range(8):
            decides.begin_load(number, RUNS, 64)
            decides.end_load(number, 1000.0, is_whole=True)
        wish = Wish(RUNS, 0, 1040)
        rereads = Rereads(decides)
        for asked in range(10):  # noqa: B007 - used below
            if decides.decide(wish).blocks:
                break
            rereads.offer([space], CHAIN, RUNS, 1.0)
            until = time.monotonic() + 10
            while rereads._read is not None:
                assert time.monotonic() < until
                rereads.take()
        assert asked <= 2
