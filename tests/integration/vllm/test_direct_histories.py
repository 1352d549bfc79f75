"""Random histories of both halves of the direct path in a small engine (`direct_rig.Rig`)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.dose import dose
from tests.integration.vllm.direct_jumps import use_both_ends
from tests.integration.vllm.direct_pages import TOKENS, prefix_name, write_if
from tests.integration.vllm.direct_rig import Rig
from tests.served import ServerProcess, serving

from dalsegno.integrations.vllm.events import PAUSE_S

pytestmark = pytest.mark.engine


def any_rig(make_rig: Callable[..., Rig], choose: random.Random, **settings: Any) -> Rig:
    """Chooses when blocks are loaded, and from where."""
    rig = make_rig(
        max_step_load_s=choose.choice([60.0, 1e-9]),
        failed_load_pause_s=choose.choice([30.0, 0.001]),
        pages_per_block=choose.choice([1, 2]),
        load_policy=choose.choice(["always", "always", "auto"]),
        **settings,
    )
    if choose.random() < 0.5:
        rig.slow_down()
    if choose.random() < 0.5:
        rig.read_in_steps()
    if choose.random() < 0.5:
        write_if(rig.scheduler, lambda: choose.random() < 0.5)
    if choose.random() < 0.5:
        use_both_ends(rig, lambda blocks: (choose.randrange(blocks), choose.randrange(1, 4)))
    return rig


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("served") / "store") as server:
        yield server


@pytest.mark.parametrize("seed", range(dose(4, 300)))
def test_random_histories(make_rig: Callable[..., Rig], seed: int) -> None:
    """With a store in the engine's process."""
    choose = random.Random(seed)
    run_history(any_rig(make_rig, choose), choose)


@pytest.mark.parametrize("seed", range(dose(2, 200)))
def test_random_histories_with_a_server(
    make_rig: Callable[..., Rig], server: ServerProcess, seed: int
) -> None:
    """Each worker is a client of its own, as one in another process is."""
    choose = random.Random(seed)
    # The server is that of the histories before.
    run_history(any_rig(make_rig, choose, path=server.socket, salt=f"history {seed}"), choose)


def run_history(rig: Rig, choose: random.Random) -> None:
    """Requests of a few documents begin, end, are preempted; loads fail; blocks are removed."""
    documents = [
        [*range(100 * common, 100 * common + 18), *range(end, end + choose.randrange(24))]
        for common in (1, 2)
        for end in (1000, 2000, 3000)
    ]
    for number in range(dose(120, 300)):
        known = [*rig.waiting, *rig.running, *rig.remote.values()]
        match choose.randrange(13):
            case 0 | 1 | 2 if len(known) < 6:
                rig.ask(f"{number}", choose.choice(documents), answers=choose.randrange(1, 9))
            case 3 if known:
                rig.abort(choose.choice(known))
            case 4 if rig.running:
                rig.preempt(choose.choice(rig.running))
            case 5:
                document = choose.choice(documents)
                names = [prefix_name(document[:end]) for end in range(TOKENS, 24, TOKENS)]
                choose.choice(rig.namespaces).remove(names)
            case 6:
                rig.failing[choose.randrange(rig.ranks)] += 1
                rig.aborts_in_step = choose.random() < 0.5
            case 7:
                rig.forget()
                rig.hooks_run = choose.random() < 0.7
            case 8 if not rig.holds_loaded and choose.random() < 0.3:
                rig.change_weights()
            case _:
                rig.step()
    rig.failing.clear()
    rig.settle()
    for document in documents:
        rig.stored(document)
    wait_for_router(rig, documents)
    assert len(rig.pages.free) == 24, "blocks leaked"
    assert rig.counts["answered"] > 0


def wait_for_router(rig: Rig, documents: list[list[int]]) -> None:
    """Steps until the router counts only on blocks of documents that all ranks have.

    Removals are asked for later, if the store could not name them twice in a row.
    """
    until = time.monotonic() + 2 * PAUSE_S
    while not all(one in rig.common_blocks(*documents) for one in rig.router.blocks.values()):
        assert time.monotonic() < until, "a router counts on blocks that have left"
        rig.step()
