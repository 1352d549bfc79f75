"""Every way to a store: bytes that rot or vanish are misses with a cause, and can be put again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.contract.places import SMALL, Place, fill, holds, right_or_missing
from tests.contract.routes import Session
from tests.contract.subjects import chain
from tests.outside import Extent, extents, flip, segments

Damage = Callable[[Extent, Extent], None]
PROMPTS = [chain(4, f"{number}.") for number in range(6)]


@pytest.fixture(autouse=True)
def extent(place: Place) -> Extent:
    """One of the extents of a closed store that holds `PROMPTS`; it need not be clean later."""
    with place.open() as session:
        for prompt in PROMPTS:
            assert all(fill(session, prompt))
    place.damaged = True
    found = extents(place.directory)
    return found[len(found) // 2]


@pytest.fixture
def other(extent: Extent, place: Place) -> Extent:
    """Another extent that is as large."""
    return next(
        one
        for one in extents(place.directory)
        if one.start != extent.start and one.end - one.start == extent.end - extent.start
    )


def flip_payload(extent: Extent, _: Extent) -> None:
    flip(extent.file, extent.payload)


def flip_header(extent: Extent, _: Extent) -> None:
    flip(extent.file, extent.start + 40)


def flip_magic(extent: Extent, _: Extent) -> None:
    flip(extent.file, extent.start)


def zero(extent: Extent, _: Extent) -> None:
    with extent.file.open("r+b") as stream:
        stream.seek(extent.start)
        stream.write(bytes(extent.end - extent.start))
        stream.flush()
        os.fsync(stream.fileno())


def cut(extent: Extent, _: Extent) -> None:
    os.truncate(extent.file, extent.payload + 1)


def overwrite(extent: Extent, other: Extent) -> None:
    """Puts another extent where it was, as a file system might that mixes up blocks."""
    with other.file.open("rb") as source, extent.file.open("r+b") as target:
        source.seek(other.start)
        target.seek(extent.start)
        target.write(source.read(other.end - other.start))
        target.flush()
        os.fsync(target.fileno())


def empty(extent: Extent, _: Extent) -> None:
    os.truncate(extent.file, 0)


def lose(extent: Extent, _: Extent) -> None:
    extent.file.unlink()


HOWS: list[Damage] = [
    flip_payload,
    flip_header,
    flip_magic,
    zero,
    cut,
    overwrite,
    empty,
    lose,
]


def name_of(how: Damage) -> str:
    return how.__name__


def repair(session: Session, prompt: list[bytes]) -> None:
    """Serves a prompt until it is all there: what a load finds to be lost, the next put brings."""
    for _ in prompt:
        assert all(fill(session, prompt))
        if all(right_or_missing(session, prompt)):
            return
    raise AssertionError("what was lost does not come back")


def lost_count(session: Session) -> int:
    """Loads all prompts; what comes must be right. Returns how many blocks are missing."""
    return sum(right_or_missing(session, prompt).count(False) for prompt in PROMPTS)


@pytest.mark.parametrize("how", HOWS, ids=name_of)
def test_a_damaged_extent_is_a_miss_and_can_be_put_again(
    how: Damage, extent: Extent, other: Extent, place: Place
) -> None:
    how(extent, other)
    with place.open() as session:
        lost = lost_count(session)
        assert lost > 0
        if how is flip_payload:
            assert lost <= len(PROMPTS[0])
            assert session.counters()["log"]["misses"]["slice_checksum"] > 0
            assert session.counters()["quarantined_blocks"] > 0
        for prompt in PROMPTS:
            repair(session, prompt)
    with place.open() as session:
        for prompt in PROMPTS:
            holds(session, prompt, prompt)


@pytest.mark.parametrize("how", [flip_payload, zero, cut, overwrite], ids=name_of)
def test_damage_under_an_open_store_is_a_miss_with_a_cause(
    how: Damage, extent: Extent, other: Extent, place: Place
) -> None:
    with place.open() as session:
        how(extent, other)
        assert lost_count(session) > 0
        assert sum(session.counters()["log"]["misses"].values()) > 0
        assert session.counters()["quarantined_blocks"] > 0
    with place.open() as session:
        for prompt in PROMPTS:
            repair(session, prompt)
            holds(session, prompt, prompt)


def test_files_that_vanish_under_an_open_store_are_misses_after_a_reopen_at_the_latest(
    place: Place,
) -> None:
    with place.open() as session:
        for file in segments(place.directory):
            file.unlink()
        lost_count(session)
    with place.open() as session:
        for prompt in PROMPTS:
            holds(session, prompt, ())
            assert all(fill(session, prompt))
            holds(session, prompt, prompt)


def test_damage_everywhere_is_a_miss_everywhere(place: Place) -> None:
    for one in extents(place.directory):
        flip_payload(one, one)
    with place.open() as session:
        for prompt in PROMPTS:
            assert not all(right_or_missing(session, prompt))
            repair(session, prompt)
            holds(session, prompt, prompt)


@pytest.mark.parametrize("name", ["store.meta", "namespace-*.meta", "LOCK", "index-*"])
def test_damaged_metadata_files_are_recreated(name: str, place: Place) -> None:
    files: list[Path] = list(place.directory.glob(name))
    # Only an index in files has some.
    assert files or name == "index-*"
    for file in files:
        file.write_bytes(bytes(file.stat().st_size))
    with place.open(SMALL) as session:
        for prompt in PROMPTS:
            holds(session, prompt, prompt)
