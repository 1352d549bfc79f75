"""Workers on GPUs whose driver lacks something: answers are right, and the log says what is done.

The driver is `FakeCuda`. A machine without any driver is one whose library cannot be loaded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from tests.dose import long_dose
from tests.integration.fake_gpu import FakeGpu
from tests.integration.vllm.direct_pages import TOKENS
from tests.integration.vllm.direct_rig import Rig
from tests.integration.vllm.gpu_caches import GpuCaches
from tests.served import serving

import dalsegno

pytestmark = pytest.mark.engine
PROMPT = list(range(1000, 1000 + 10 * TOKENS + 2))
NO_READ_ONLY, NO_REGISTRATION = {113: 0}, {99: 0}
PATIENCE_S = 20.0


def ask_twice(rig: Rig) -> None:
    """Asks for the prompt, waits until it is stored, and asks again without vLLM's own blocks."""
    rig.ask("first", PROMPT)
    rig.settle()
    assert rig.stored(PROMPT) == 10
    rig.forget()
    rig.ask("second", PROMPT)
    rig.settle()
    assert rig.counts["answered"] == 2
    assert rig.counts["step_loaded"] + rig.counts["waited_blocks"] == 10


@pytest.fixture
def make(gpu: FakeGpu, tmp_path: Path) -> Iterator[Callable[[str], Rig]]:
    """Makes a small engine with a store of its own, or one that is served."""
    with ExitStack() as opened:

        def make(place: str) -> Rig:
            settings: dict[str, Any] = {}
            if place == "served":
                settings["path"] = opened.enter_context(serving(tmp_path / "served")).socket
            rig = Rig(tmp_path / "store", gpu=gpu, **settings)
            opened.callback(rig.close)
            return rig

        yield make


@pytest.mark.parametrize("place", ["own", "served"])
@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({}, "in batches"),
        ({"version": 12020}, "others by the copy engines."),
        ({"ptx": (7, 8)}, "CUDA_ERROR"),
        ({"memlock": 0}, "in batches"),
        ({"attributes": NO_READ_ONLY}, "in batches"),
        ({"attributes": NO_REGISTRATION}, "in batches"),
    ],
    ids=["whole", "no-batches", "no-kernel", "no-memlock", "no-read-only", "no-registration"],
)
def test_answers_are_right_whatever_the_driver_lacks(
    make: Callable[[str], Rig],
    gpu: FakeGpu,
    caplog: pytest.LogCaptureFixture,
    limits: Mapping[str, Any],
    said: str,
    place: str,
) -> None:
    gpu.limit(**limits)
    caplog.set_level(logging.INFO, "vllm.dalsegno")
    ask_twice(make(place))
    (line,) = [one for one in caplog.messages if "between its pool and the GPU" in one]
    assert said in line


def test_a_pool_is_registered_and_then_copied_from_directly(gpu: FakeGpu, tmp_path: Path) -> None:
    rig = Rig(tmp_path / "store", gpu=gpu)
    ask_twice(rig)
    (memory,) = [worker._memory for worker in rig.workers]
    facts, until = memory._gpu.facts(), time.monotonic() + PATIENCE_S  # type: ignore[union-attr]
    while not facts["registered_bytes"]:
        assert not facts["refusals"]
        assert time.monotonic() < until
        facts = memory._gpu.facts()  # type: ignore[union-attr]
    buffered = facts["buffered_bytes"]
    rig.forget()
    rig.ask("third", PROMPT)
    rig.settle()
    assert memory._gpu.facts()["buffered_bytes"] == buffered  # type: ignore[union-attr]
    assert facts["registered_bytes"] >= 8 << 20
    rig.close()


@long_dose
def test_a_step_saves_blocks_of_many_requests_and_layers(gpu: FakeGpu, tmp_path: Path) -> None:
    """The GPU computes them long after vLLM has gone on, so that all copies wait at once."""
    rig = Rig(tmp_path / "store", pages=200, gpu=gpu, layers=8, cpu_bytes_to_use="128MiB")
    prompts = [[*range(1000 * at, 1000 * at + TOKENS + 1)] for at in range(1, 71)]
    for at, prompt in enumerate(prompts):
        rig.ask(f"{at}", prompt, answers=1)
    gpu.lag(200_000)
    rig.settle()
    assert [rig.stored(prompt) for prompt in prompts] == [1] * len(prompts)
    rig.close()


@pytest.mark.parametrize("library", ["libcuda-of-nobody.so.1", "libc.so.6"])
def test_an_engine_without_a_driver_runs_and_says_so(
    gpu: FakeGpu,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    library: str,
) -> None:
    monkeypatch.setattr(GpuCaches, "describe", lambda *_: dalsegno.Gpu(library=library))
    rig = Rig(tmp_path / "store", gpu=gpu)
    rig.ask("first", PROMPT)
    rig.settle()
    rig.forget()
    rig.ask("second", PROMPT)
    rig.settle()
    assert rig.counts["answered"] == 2
    # Nothing is shared from now on.
    assert not rig.namespaces
    rig.close()
    (line,) = [one for one in caplog.messages if "cannot copy to vLLM's KV cache" in one]
    assert "CUDA driver" in line


def test_a_stub_of_the_driver_is_an_answer(gpu: FakeGpu) -> None:
    gpu.fail("cuInit", 0, 1, 34)
    with pytest.raises(dalsegno.UnavailableError, match="CUDA_ERROR_STUB_LIBRARY"):
        dalsegno.Gpu(library=gpu.path)


@pytest.mark.parametrize(
    "call", ["cuMemcpyBatchAsync", "cuEventRecord", "cuStreamWaitEvent", "cuLaunchKernel"]
)
def test_calls_that_fail_cost_blocks_and_no_answer(gpu: FakeGpu, tmp_path: Path, call: str) -> None:
    rig = Rig(tmp_path / "store", gpu=gpu)
    rig.ask("first", PROMPT)
    rig.settle()
    for after in range(0, 12, 3):
        rig.forget()
        gpu.fail(call, after, 2, 700)
        rig.ask(f"after {after}", PROMPT)
        rig.settle()
        gpu.fail(call, 0, 0, 0)
    rig.close()
    assert rig.counts["answered"] == 5
