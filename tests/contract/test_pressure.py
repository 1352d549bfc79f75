"""The contract under pressure: short timeouts, full stores, concurrent callers."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.contract.expect import buffers, expect, expect_right_or_absent
from tests.contract.subjects import Box, Served, chain, content, contents
from tests.contract.threads import threads
from tests.outside import disk_bytes

import dalsegno

MIB = 1 << 20


# Time.


def test_a_timeout_of_zero_is_a_miss(box: Box) -> None:
    hashes, more = chain(4), chain(4, "b")
    with box.namespace() as namespace:
        namespace.put_batch(hashes, contents(hashes, 2000))
        out = buffers(namespace, 4)
        found = namespace.get_batch(hashes, out, timeout_s=0)
        # A hit in DRAM needs no time.
        assert found == 0 or box.subject.settings.get("dram") != 0
        assert out[:found] == contents(hashes, 2000)[:found]
        report = namespace.put_batch(more, contents(more, 2000), timeout_s=0)
        assert (report.kept, report.failed) == ([False] * 4, 4)
        assert namespace.contains(more) == [False] * 4
        expect(namespace, hashes, hashes)
        assert namespace.put_batch(more, contents(more, 2000), timeout_s=60).stored == 4
        expect(namespace, more, more)


@pytest.mark.parametrize("timeout_s", [1e-6, 1e-4, 1e-3, 5e-3])
def test_a_short_timeout_yields_right_blocks_or_misses(timeout_s: float, box: Box) -> None:
    hashes, more = chain(60), chain(60, "b")
    with box.namespace(slice_bytes=20_000) as namespace:
        namespace.put_batch(hashes, contents(hashes, 40_000))
        out = buffers(namespace, 60)
        found = namespace.get_batch(hashes, out, timeout_s=timeout_s)
        assert out[:found] == contents(hashes, 40_000)[:found]
        kept = namespace.put_batch(more, contents(more, 40_000), timeout_s=timeout_s).kept
        present = namespace.contains(more)
        assert all(there for there, was_kept in zip(present, kept, strict=True) if was_kept)
        # A client gives a put up by its own clock. The server may have stored blocks by then.
        assert present == kept or isinstance(box.subject, Served)
        assert namespace.put_batch(more, contents(more, 40_000)).kept == [True] * 60
        expect(namespace, more, more)


# Room.


def test_a_full_store_keeps_within_its_capacity_and_raises_nothing(box: Box) -> None:
    capacity_bytes = 8 * MIB
    with box.namespace(slice_bytes=20_000, capacity=capacity_bytes) as namespace:
        for number in range(120):
            hashes = chain(6, f"{number}.")
            report = namespace.put_batch(hashes, contents(hashes, 40_000))
            assert report.failed == 0 or not box.subject.evicts
            assert namespace.contains(hashes) == report.kept
            expect(namespace, hashes, [h for h, k in zip(hashes, report.kept, strict=True) if k])
            if number % 10 == 0:
                assert disk_bytes(box.path) <= capacity_bytes
        for number in range(120):
            expect_right_or_absent(namespace, chain(6, f"{number}."))
    assert box.subject.evicts is False or disk_bytes(box.path) <= capacity_bytes
    with box.namespace(slice_bytes=20_000, capacity=capacity_bytes) as namespace:
        found = [sum(expect_right_or_absent(namespace, chain(6, f"{n}."))) for n in range(120)]
        assert sum(found) * 40_000 <= capacity_bytes
        assert sum(found) * 40_000 >= capacity_bytes // 4


def test_regression_frequently_used_blocks_stay(filed: Box) -> None:
    favourite = chain(6)
    with filed.namespace(slice_bytes=20_000, capacity="8MiB") as namespace:
        namespace.put_batch(favourite, contents(favourite, 40_000))
        for number in range(120):
            hashes = chain(6, f"{number}.")
            namespace.put_batch(hashes, contents(hashes, 40_000))
            assert namespace.get_batch(favourite, buffers(namespace, 6)) == 6
        expect(namespace, favourite, favourite)


# Many at once.


def test_concurrent_readers_and_writers_see_right_blocks(box: Box) -> None:
    prompts = [chain(3) + chain(5, f"{number}.") for number in range(8)]
    everything = {one for prompt in prompts for one in prompt}

    def work(seed: int, namespace: dalsegno.Namespace) -> Callable[[], None]:
        def go() -> None:
            dice = random.Random(seed)
            for _ in range(25):
                prompt = dice.choice(prompts)
                if dice.random() < 0.5:
                    report = namespace.put_batch(prompt, contents(prompt, 4000))
                    assert report.failed == 0
                    # What another thread is writing is pending here and visible soon.
                    assert report.stored + report.present + report.pending == 8
                else:
                    expect_right_or_absent(namespace, prompt)
                    namespace.probe(prompt)

        return go

    with box.namespace(slice_bytes=2000) as namespace:
        with threads([work(seed, namespace) for seed in range(4)]):
            pass
        for prompt in prompts:
            namespace.put_batch(prompt, contents(prompt, 4000))
            expect(namespace, prompt, everything)
    with box.namespace(slice_bytes=2000) as namespace:
        for prompt in prompts:
            expect(namespace, prompt, everything)


def test_readers_writers_and_removers_in_a_full_store_see_right_blocks(box: Box) -> None:
    prompts = [chain(2) + chain(6, f"{number}.") for number in range(40)]

    def work(seed: int, namespace: dalsegno.Namespace) -> Callable[[], None]:
        def go() -> None:
            dice = random.Random(seed)
            for _ in range(40):
                prompt = dice.choice(prompts)
                choice = dice.random()
                if choice < 0.5:
                    namespace.put_batch(prompt, contents(prompt, 40_000))
                elif choice < 0.9:
                    expect_right_or_absent(namespace, prompt)
                else:
                    namespace.remove(prompt[2:4])

        return go

    with (
        box.namespace(slice_bytes=20_000, capacity="7MiB") as namespace,
        threads([work(seed, namespace) for seed in range(4)]),
    ):
        pass
    with box.namespace(slice_bytes=20_000, capacity="7MiB") as namespace:
        for prompt in prompts:
            expect_right_or_absent(namespace, prompt)


def test_two_puts_of_the_same_blocks_write_them_once(box: Box) -> None:
    hashes = chain(40)
    reports: list[dalsegno.PutReport] = []

    with box.namespace(slice_bytes=20_000) as namespace:

        def put() -> None:
            reports.append(namespace.put_batch(hashes, contents(hashes, 40_000)))

        with threads([put] * 4):
            pass
        assert sum(report.stored for report in reports) == 40
        assert [report.failed for report in reports] == [0] * 4
        expect(namespace, hashes, hashes)


def test_transfers_of_many_threads_all_end(box: Box) -> None:
    with box.namespace(slice_bytes=2000) as namespace:

        def work(number: int) -> Callable[[], None]:
            def go() -> None:
                hashes = chain(6, f"{number}.")
                put = namespace.submit_put(hashes, contents(hashes, 4000))
                assert put.wait(60)
                assert put.result().stored == 6
                out = buffers(namespace, 6)
                get = namespace.submit_get(hashes, out, each=True)
                assert get.wait(60)
                assert get.result() == [True] * 6
                assert out == [content(one, 4000) for one in hashes]

            return go

        with threads([work(number) for number in range(12)]):
            pass
