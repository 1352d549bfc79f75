"""The contract: any history of calls has the results that the reference has.

Prompts are words over three letters, and a block's hash commits to all letters before it, so that
histories are full of shared prefixes, forks and gaps. Bytes follow from the hash.
"""

from __future__ import annotations

import hashlib
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.contract.expect import buffers, expect_right_or_absent
from tests.contract.subjects import SUBJECTS, Subject, contents
from tests.dose import dose

import dalsegno

LAYERS, SLICE_BYTES = 3, 700
BLOCK_BYTES = LAYERS * SLICE_BYTES
NATIVE = [subject for subject in SUBJECTS if subject.files]
REFERENCE = next(subject for subject in SUBJECTS if not subject.files)


def hashes_of(prompt: str) -> list[bytes]:
    return [hashlib.sha256(prompt[: end + 1].encode()).digest() for end in range(len(prompt))]


prompts = st.text("abc", min_size=1, max_size=7)
places = st.integers(0, 6)
Step = tuple[Any, ...]
steps: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.sampled_from(["put", "submit_put", "write_layers"]), prompts, places, places),
    st.tuples(st.sampled_from(["get", "submit_get"]), prompts, places),
    st.tuples(st.just("get_each"), st.lists(prompts, min_size=1, max_size=4)),
    st.tuples(st.just("layer"), prompts, st.integers(0, LAYERS - 1)),
    st.tuples(st.just("remove"), prompts, places),
    st.tuples(st.just("remove_all")),
    st.tuples(st.just("reopen")),
)


@dataclass
class Player:
    """Plays a history on one store."""

    subject: Subject
    path: Path
    settings: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        self.store = self.subject.open(self.path, **self.settings)
        self.namespace: dalsegno.Namespace = self.store.namespace(
            {"model": "m"}, layers=LAYERS, slice_bytes=SLICE_BYTES
        )

    def play(self, step: Step) -> Any:
        """Carries out a step; returns what a caller can see of it."""
        name, *rest = step
        return getattr(self, name)(*rest)

    def put(self, prompt: str, first: int, count: int) -> Any:
        hashes = hashes_of(prompt)
        blocks = contents(hashes[first : first + count], BLOCK_BYTES)
        report = self.namespace.put_batch(hashes, blocks, first=min(first, len(hashes)))
        return report.stored, report.present, report.failed, report.kept

    def submit_put(self, prompt: str, first: int, count: int) -> Any:
        hashes = hashes_of(prompt)
        blocks = contents(hashes[first : first + count], BLOCK_BYTES)
        transfer = self.namespace.submit_put(hashes, blocks, first=min(first, len(hashes)))
        assert transfer.wait(60)
        report = transfer.result()
        return report.stored, report.present, report.failed, report.kept

    def write_layers(self, prompt: str, first: int, count: int) -> Any:
        hashes = hashes_of(prompt)
        first = min(first, len(hashes))
        count = min(count, len(hashes) - first)
        writer = self.namespace.layer_writer(hashes, first=first, count=count)
        assert writer.first + writer.count == first + count
        blocks = contents(hashes[writer.first : first + count], BLOCK_BYTES)
        for layer in range(LAYERS):
            part = slice(layer * SLICE_BYTES, (layer + 1) * SLICE_BYTES)
            writer.store_layer(layer, [block[part] for block in blocks])
        writer.commit()
        return writer.first, writer.count, self.namespace.contains(hashes)

    def _filled(self, hashes: Sequence[bytes], out: list[bytearray], found: list[bool]) -> Any:
        right = contents(hashes, BLOCK_BYTES)
        return [found[i] and out[i] == right[i] for i in range(len(hashes))]

    def get(self, prompt: str, first: int) -> Any:
        hashes = hashes_of(prompt)[first:]
        out = buffers(self.namespace, len(hashes))
        count = self.namespace.get_batch(hashes, out)
        found = [index < count for index in range(len(hashes))]
        assert count == self.namespace.probe(hashes)
        return self._filled(hashes, out, found)

    def submit_get(self, prompt: str, first: int) -> Any:
        hashes = hashes_of(prompt)[first:]
        out = buffers(self.namespace, len(hashes))
        transfer = self.namespace.submit_get(hashes, out, each=True)
        assert transfer.wait(60)
        return self._filled(hashes, out, transfer.result())

    def get_each(self, several: list[str]) -> Any:
        hashes = [hashes_of(prompt)[-1] for prompt in several]
        out = buffers(self.namespace, len(hashes))
        found = self.namespace.get_each(hashes, out)
        assert found == self.namespace.contains(hashes)
        return self._filled(hashes, out, found)

    def layer(self, prompt: str, layer: int) -> Any:
        hashes = hashes_of(prompt)
        out = buffers(self.namespace, len(hashes))
        load = self.namespace.load(hashes, out)
        is_ready = load.wait_layer(layer, timeout_s=60)
        assert load.wait(60)
        assert out[: load.result()] == contents(hashes, BLOCK_BYTES)[: load.result()]
        return load.result(), is_ready

    def remove(self, prompt: str, first: int) -> Any:
        return self.namespace.remove(hashes_of(prompt)[first:])

    def remove_all(self) -> Any:
        return self.namespace.remove()

    def reopen(self) -> None:
        self.store.close()
        self.open()

    def everything(self, history: Sequence[Step]) -> Any:
        """Which blocks of all prompts of a history are there."""
        named = sorted({one for step in history for one in step[1:] if isinstance(one, str)})
        return {prompt: self.namespace.contains(hashes_of(prompt)) for prompt in named}


@pytest.mark.parametrize("native", NATIVE, ids=lambda subject: str(subject.name))
@given(history=st.lists(steps, max_size=25))
@settings(max_examples=dose(10, 200), deadline=None)
def test_any_history_has_the_results_of_the_reference(native: Subject, history: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        real = Player(native, Path(folder) / "real")
        oracle = Player(REFERENCE, Path(folder) / "oracle")
        for number, step in enumerate(history):
            assert real.play(step) == oracle.play(step), (number, step)
        for _ in range(2):
            assert real.everything(history) == oracle.everything(history)
            real.reopen()
        real.store.close()
        oracle.store.close()
        assert native.verify(real.path) == []


@pytest.mark.parametrize("native", NATIVE, ids=lambda subject: str(subject.name))
@given(seed=st.integers(0, 1 << 32))
# A seed cannot be shrunk, so a failing one is reported as it is.
@settings(
    max_examples=dose(2, 20),
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
def test_a_history_in_a_full_store_never_yields_wrong_blocks(native: Subject, seed: int) -> None:
    size, dice = 3 * 30_000, random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        for _ in range(3):
            with native.open(path, capacity="6MiB") as store:
                namespace = store.namespace({}, layers=3, slice_bytes=30_000)
                for _ in range(dice.randint(10, 40)):
                    hashes = hashes_of(f"{dice.randrange(64):06b}")
                    kept = namespace.put_batch(hashes, contents(hashes, size)).kept
                    present = namespace.contains(hashes)
                    # The first of them may have been evicted for the last.
                    assert all(k or not p for k, p in zip(kept, present, strict=True))
                    expect_right_or_absent(namespace, hashes_of(f"{dice.randrange(64):06b}"))
        assert native.verify(path) == []
