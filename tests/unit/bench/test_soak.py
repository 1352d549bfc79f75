"""What `dalsegno bench soak` complains of."""

from __future__ import annotations

from typing import Any

import pytest

from dalsegno_bench.soak.figures import complaints

WELL: dict[str, Any] = {
    "requests": 300_000,
    "hit_blocks": 5_000_000,
    "put_blocks": 2_800_000,
    "failed_blocks": 500,
    "wrong_blocks": 0,
    "evicted_blocks": 300_000,
    "merges": 2_000,
    "refused_segments": 40,
    "kills": 180,
    "fills": 19,
    "poisoned_lives": 0,
    "errors": {},
    "crashes": [],
    "fds_growth": 0.0,
    "threads_growth": 0.0,
    "heap_mib_first": 6.8,
    "heap_mib_growth": 0.0,
    "rss_mib_by_eighth": [78.0, 96.0, 113.0, 114.0, 115.0, 114.0, 115.0, 115.0],
    "held_mib_by_eighth": [27.0, 28.1, 27.4, 27.9, 28.0, 27.6, 27.9, 27.8],
}


def test_a_healthy_run_has_no_complaints() -> None:
    assert complaints(WELL, 20) == []


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"wrong_blocks": 1}, "wrong_blocks: 1"),
        ({"failed_blocks": 900_000}, "900000 of 3700000 blocks were not kept"),
        ({"errors": {"timeout": 2}}, "timeout"),
        ({"crashes": ["killed by signal 11"]}, "signal 11"),
        ({"poisoned_lives": 1}, "poisoned_lives: 1"),
        ({"fds_growth": 1.0}, "fds grew"),
        ({"threads_growth": 2.0}, "threads grew"),
        ({"heap_mib_growth": 0.7}, "the heap grew"),
        ({"rss_mib_by_eighth": [78.0 + 12 * at for at in range(8)]}, "rss_mib grew"),
        ({"held_mib_by_eighth": [27.0 + at for at in range(8)]}, "held_mib grew"),
        ({"kills": 0}, "no kills"),
        ({"refused_segments": 0}, "no refused_segments"),
        ({"hit_blocks": 0}, "no hit_blocks"),
    ],
)
def test_errors_growth_and_faults_that_never_occurred_are_reported(
    figures: dict[str, Any], words: str
) -> None:
    (result,) = complaints({**WELL, **figures}, 20)
    assert words in result


def test_a_short_run_needs_no_occurrence_of_every_fault() -> None:
    assert complaints({**WELL, "fills": 0, "rss_mib_by_eighth": [78.0, 96.0]}, 1) == []
