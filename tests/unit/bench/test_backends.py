"""What the store is measured by must be as good as it claims: hits, bounds, failures."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dalsegno_bench.disk.log import aligned
from dalsegno_bench.dynamic import backends

BLOCK_BYTES = 4096
BLOCKS = 8
MIB = 1 << 20

Make = Callable[..., backends.Backend]


def chain(prompt: str, count: int = BLOCKS) -> list[bytes]:
    return [hashlib.sha256(f"{prompt}{index}".encode()).digest() for index in range(count)]


def buffers(count: int = BLOCKS) -> list[memoryview]:
    memory = aligned(count * BLOCK_BYTES)
    return [memory[at : at + BLOCK_BYTES] for at in range(0, len(memory), BLOCK_BYTES)]


def stamped(names: list[bytes]) -> list[memoryview]:
    blocks = buffers(len(names))
    for name, block in zip(names, blocks, strict=True):
        block[: len(name)] = name
    return blocks


def loaded(backend: backends.Backend, names: list[bytes]) -> int:
    """What a load says, once each block is seen to be the right one."""
    out = buffers(len(names))
    hits = backend.load(names, out)
    assert [bytes(block[:32]) for block in out[:hits]] == names[:hits]
    return hits


def files_under(directory: Path) -> int:
    return sum(path.is_file() for path in directory.rglob("*"))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes backends in folders of their own and closes them."""
    try:
        backends.check_direct(tmp_path)
    except OSError as error:
        pytest.skip(str(error))
    opened: list[backends.Backend] = []

    def call(system: str, *, disk_bytes: int = 64 * MIB, memory_bytes: int = 0) -> backends.Backend:
        directory = tmp_path / system
        directory.mkdir()
        opened.append(
            backends.make(
                system,
                directory,
                BLOCK_BYTES,
                disk_bytes=disk_bytes,
                memory_bytes=memory_bytes or backends.METADATA_BYTES + MIB,
            )
        )
        return opened[-1]

    yield call
    for backend in opened:
        backend.close()


@pytest.mark.parametrize("system", backends.SYSTEMS)
def test_every_backend_gives_back_the_leading_blocks(system: str, make: Make) -> None:
    backend = make(system)
    first, other = chain("a"), [*chain("a")[:3], *chain("b")[3:]]
    assert loaded(backend, first) == 0
    assert backend.save(first, stamped(first), 0) == 0
    assert loaded(backend, other) == 3
    assert backend.save(other, stamped(other)[3:], 3) == 0
    assert loaded(backend, first) == loaded(backend, other) == BLOCKS
    # Put again as a whole, nothing changes.
    assert backend.save(first, stamped(first), 0) == 0
    assert loaded(backend, [*first, chain("c")[0]]) == BLOCKS


def test_memory_evicts_the_least_recently_used_prompt_and_suffixes_first(make: Make) -> None:
    backend = make("memory", memory_bytes=2 * BLOCKS * BLOCK_BYTES)
    for prompt in "ab":
        backend.save(chain(prompt), stamped(chain(prompt)), 0)
    # `a` is used: it is younger than `b` now.
    backend.save(chain("a"), [], BLOCKS)
    backend.save(chain("c", 3), stamped(chain("c", 3)), 0)
    assert [loaded(backend, chain(prompt)) for prompt in "abc"] == [BLOCKS, BLOCKS - 3, 3]
    assert backend.disk_bytes() == 0


def test_files_stay_within_their_disk_and_evict_the_oldest_suffix(
    make: Make, tmp_path: Path
) -> None:
    # The memory in front holds one block, so that what is loaded comes from files.
    memory_bytes = backends.METADATA_BYTES + BLOCK_BYTES
    backend = make("files", disk_bytes=2 * BLOCKS * BLOCK_BYTES, memory_bytes=memory_bytes)
    for prompt in "ab":
        backend.save(chain(prompt), stamped(chain(prompt)), 0)
    backend.save(chain("a"), [], BLOCKS)
    backend.save(chain("c", 3), stamped(chain("c", 3)), 0)
    assert [loaded(backend, chain(prompt)) for prompt in "abc"] == [BLOCKS, BLOCKS - 3, 3]
    assert files_under(tmp_path / "files") == 2 * BLOCKS
    assert backend.disk_bytes() == 2 * BLOCKS * BLOCK_BYTES


def test_blocks_from_a_lost_or_truncated_file_on_are_misses(make: Make, tmp_path: Path) -> None:
    backend = make("files", memory_bytes=backends.METADATA_BYTES + BLOCK_BYTES)
    names = chain("a")
    backend.save(names, stamped(names), 0)
    file = {path.name: path for path in (tmp_path / "files").rglob("*") if path.is_file()}
    os.truncate(file[names[6].hex()], 100)
    assert loaded(backend, names) == 6
    file[names[4].hex()].unlink()
    assert loaded(backend, names) == 4


@pytest.mark.parametrize(("system", "failed", "before"), [("files", 3, 8), ("files-evict", 0, 5)])
def test_a_full_file_system_loses_new_blocks_or_old_ones(
    system: str,
    failed: int,
    before: int,
    make: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = make(system, memory_bytes=backends.METADATA_BYTES + BLOCK_BYTES)
    backend.save(chain("a"), stamped(chain("a")), 0)
    real = os.open

    def full(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_CREAT and files_under(tmp_path) >= BLOCKS:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, flags, mode, dir_fd=dir_fd)

    # Threads would race for the last inode.
    monkeypatch.setattr(backends, "THREADS", 1)
    monkeypatch.setattr(os, "open", full)
    new = chain("b", 3)
    assert backend.save(new, stamped(new), 0) == failed
    assert files_under(tmp_path) == BLOCKS
    monkeypatch.setattr(os, "open", real)
    assert loaded(backend, chain("a")) == before
    # One of the blocks that could not be written is in memory.
    assert loaded(backend, list(reversed(new))) == (3 if not failed else 0)


def test_a_failed_write_leaves_no_file(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = make("files")

    def short(fd: int, given: list[memoryview], at: int) -> int:
        return len(given[0]) - 512

    monkeypatch.setattr(os, "pwritev", short)
    assert backend.save(chain("a"), stamped(chain("a")), 0) == BLOCKS
    assert files_under(tmp_path) == 0


def test_blocks_that_direct_io_cannot_write_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="whole sectors"):
        backends.make("files", tmp_path, 5000, disk_bytes=MIB, memory_bytes=MIB)


def test_a_file_system_without_direct_io_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> int:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(OSError, match="--dir"):
        backends.check_direct(tmp_path)
