"""Which prefixes several pools can restore, against a definition that tries them all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dalsegno.integrations.sglang.hits import (
    ALL_PAGES,
    BLOCK_GROUPS,
    TRAILING_PAGES,
    Wanted,
    leading,
    restorable,
)

bits = st.lists(st.booleans(), min_size=12, max_size=12)


def serves(pool: Wanted, length: int) -> bool:
    """Whether a pool has what a prefix of this length needs: the definition."""
    if pool.policy == ALL_PAGES:
        return all(pool.present[:length])
    return all(pool.present[max(0, length - max(1, pool.trailing)) : length])


@given(
    kv_pages=st.integers(0, 12),
    pools=st.lists(
        st.tuples(st.sampled_from([ALL_PAGES, TRAILING_PAGES]), bits, st.integers(0, 5)),
        max_size=3,
    ),
)
def test_exactly_the_prefixes_that_all_pools_serve_are_restorable(
    kv_pages: int, pools: list[tuple[str, list[bool], int]]
) -> None:
    wanted = [
        Wanted(f"pool{number}", policy, present, trailing)
        for number, (policy, present, trailing) in enumerate(pools)
    ]
    lengths, longest = restorable(kv_pages, wanted)
    possible = range(1, kv_pages + 1)
    assert lengths == [n for n in possible if all(serves(pool, n) for pool in wanted)]
    for pool in wanted:
        own = [n for n in possible if serves(pool, n)]
        assert longest.get(pool.name, 0) == max(own, default=0)


def test_block_groups_never_shorten_a_hit() -> None:
    groups = Wanted("c4", BLOCK_GROUPS, [True] * 5 + [False] * 3, block_pages=4, group_pages=2)
    assert restorable(8, [groups]) == ([1, 2, 3, 4, 5, 6, 7, 8], {"c4": 8})
    nothing = Wanted("c4", BLOCK_GROUPS, [True, False], block_pages=4, group_pages=2)
    assert restorable(2, [nothing]) == ([1, 2], {})


def test_leading_counts_present_pages_before_the_first_gap() -> None:
    assert [leading(one) for one in ([], [True], [False], [True, False, True])] == [0, 1, 0, 1]
