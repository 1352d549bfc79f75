"""The copy kernel, run on the CPU against a copy of each piece, and the PTX built from it."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.checkout import ROOT, load_tool
from tests.dose import dose
from tests.skipping import skip_if_missing

KERNEL = ROOT / "crates" / "cuda" / "kernel"
FLAGS = ("-x", "c", "-std=c11", "-Wall", "-Wextra", "-Werror", "-DDALSEGNO_HOST")
COUNTERS = ("dalsegno_loaded_bytes", "dalsegno_stored_bytes", "dalsegno_misaligned_count")

UNITS = (1, 2, 4, 8, 16)
# Bytes before and after each piece that a launch must not change.
GUARD_BYTES = 64

# Ten pieces without bytes, and behind them a page that cannot be read.
LIST_AT_THE_END_OF_MEMORY = """
import ctypes, mmap, sys
kernel, libc, page = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(None), mmap.PAGESIZE
pages = mmap.mmap(-1, 2 * page)
end = ctypes.addressof(ctypes.c_char.from_buffer(pages)) + page
assert libc.mprotect(ctypes.c_void_p(end), page, 0) == 0
kernel.dalsegno_run_on_host(ctypes.c_void_p(end - 10 * 24), 10, 3, 32)
"""

Bytes = npt.NDArray[np.uint8]


class Shape(NamedTuple):
    """The size of a piece, and how many bytes its addresses are behind a multiple of 16."""

    size_bytes: int
    from_offset: int
    to_offset: int


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernel, compiled as C."""
    missing = None if shutil.which("cc") else "needs a C compiler as `cc` on PATH"
    skip_if_missing(missing, "cc")
    library = tmp_path_factory.mktemp("kernel") / "copy.so"
    command = ["cc", *FLAGS, "-O2", "-shared", "-fPIC", "-o", str(library), str(KERNEL / "copy.cu")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = ctypes.CDLL(str(library))
    number = ctypes.c_uint
    loaded.dalsegno_run_on_host.argtypes = [ctypes.c_void_p, number, number, number]
    loaded.dalsegno_run_on_host.restype = None
    return loaded


def arena(size_bytes: int, low: int, high: int) -> Bytes:
    """Random bytes of a range, at a multiple of 16."""
    drawn = np.random.default_rng(size_bytes).integers(low, high, size_bytes + 16, np.uint8)
    start = -drawn.ctypes.data % 16
    return drawn[start : start + size_bytes]


def check_copies(kernel: ctypes.CDLL, shapes: list[Shape], blocks: int, threads: int) -> None:
    """Runs one launch and compares all memory with a copy of each piece."""
    places, end = [], 0
    for shape in shapes:
        places.append(end + GUARD_BYTES)
        end += (shape.size_bytes + 2 * GUARD_BYTES + 31) // 16 * 16
    # A source byte never equals a destination byte, so that each byte shows whether it was written.
    source, target = arena(end, 0, 128), arena(end, 128, 256)
    before, expected = source.copy(), target.copy()
    entries = np.empty((len(shapes), 3), np.uint64)
    for row, place, (size_bytes, from_offset, to_offset) in zip(
        entries, places, shapes, strict=True
    ):
        start, to = place + from_offset, place + to_offset
        row[:] = source.ctypes.data + start, target.ctypes.data + to, size_bytes
        expected[to : to + size_bytes] = source[start : start + size_bytes]
    listed = entries.copy()
    counters = [ctypes.c_ulonglong.in_dll(kernel, name) for name in COUNTERS]
    for counter in counters:
        counter.value = 0

    kernel.dalsegno_run_on_host(entries.ctypes.data, len(shapes), blocks, threads)

    np.testing.assert_array_equal(target, expected)
    np.testing.assert_array_equal(source, before)
    np.testing.assert_array_equal(entries, listed)
    total = sum(shape.size_bytes for shape in shapes)
    assert [counter.value for counter in counters] == [total, total, 0]


offsets = st.integers(0, 15)
sizes = st.one_of(
    st.integers(0, 100),
    st.integers(0, 100_000),
    st.builds(lambda units, more: units * 16 + more, st.integers(2, 6_000), st.integers(-2, 2)),
)
launches = st.tuples(st.sampled_from([1, 3, 4, 8]), st.sampled_from([1, 31, 32, 512, 1024]))


@given(shapes=st.lists(st.builds(Shape, sizes, offsets, offsets), max_size=12), launch=launches)
def test_each_piece_is_copied_exactly_and_no_other_byte_changes(
    kernel: ctypes.CDLL, shapes: list[Shape], launch: tuple[int, int]
) -> None:
    check_copies(kernel, shapes, *launch)


def test_short_pieces_of_every_size_and_alignment_are_copied(kernel: ctypes.CDLL) -> None:
    shapes = [Shape(*drawn) for drawn in product(range(dose(50, 140)), range(16), range(16))]
    check_copies(kernel, shapes, 8, 32)


@pytest.mark.parametrize("threads", [1, 32, 512])
def test_sizes_next_to_a_whole_round_of_loads_are_copied(kernel: ctypes.CDLL, threads: int) -> None:
    # With this distance between the addresses, the kernel copies in this unit.
    distances = [(unit, unit % 16) for unit in UNITS]
    shapes = [
        Shape(max(0, loads * threads * unit + more), aside, (aside + distance) % 16)
        for (unit, distance), loads, more, aside in product(
            distances, (1, 3, 4, 5, 8), (-17, -1, 0, 1, 17), (0, 5)
        )
    ]
    check_copies(kernel, shapes, 4, threads)


def test_a_launch_with_more_blocks_than_pieces_copies_each_once(kernel: ctypes.CDLL) -> None:
    check_copies(kernel, [Shape(70_000, 0, 0)], 8, 512)
    check_copies(kernel, [Shape(16_384, 0, 0)] * 9, 8, 512)


def test_an_empty_list_is_not_read(kernel: ctypes.CDLL) -> None:
    kernel.dalsegno_run_on_host(None, 0, 8, 512)


def test_nothing_behind_the_list_is_read(kernel: ctypes.CDLL) -> None:
    command = [sys.executable, "-c", LIST_AT_THE_END_OF_MEMORY, kernel._name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"the kernel read behind the list {done.stderr}"


def test_a_piece_without_bytes_may_have_any_address(kernel: ctypes.CDLL) -> None:
    entries = np.array([[0, 0, 0], [0, 7, 0], [2**64 - 1, 3, 0]], np.uint64)
    kernel.dalsegno_run_on_host(entries.ctypes.data, 3, 2, 32)


@pytest.fixture
def ptx_tool() -> Any:
    return load_tool("gpu/ptx")


@pytest.fixture(scope="module")
def ptx() -> str:
    return (KERNEL / "copy.ptx").read_text(encoding="utf-8")


def test_the_ptx_runs_on_drivers_from_535_and_gpus_from_sm_80(ptx: str) -> None:
    (version,) = re.findall(r"^\.version (\d+)\.(\d+)$", ptx, re.MULTILINE)
    assert tuple(map(int, version)) <= (8, 2)
    assert re.findall(r"^\.target (.+)$", ptx, re.MULTILINE) == ["sm_80"]
    assert re.findall(r"\.entry (\w+)\(", ptx) == ["dalsegno_copy_pieces"]


def test_a_thread_loads_four_vectors_before_it_stores_them(ptx: str) -> None:
    assert re.findall(r"\b(?:ld|st)\.\S*v[24]\S*", ptx) == (
        ["ld.global.v4.u32"] * 4 + ["st.global.v4.u32"] * 4
    )


def test_every_access_is_global_and_coherent(ptx: str) -> None:
    kinds = set(re.findall(r"\b((?:ld|st)(?:\.[a-z]+)+)\.(?:v4\.)?u\d+", ptx))
    assert kinds == {"ld.param", "ld.global", "st.global"}


def test_the_ptx_is_not_older_than_the_source(ptx: str, ptx_tool: Any) -> None:
    first = ptx.partition("\n")[0]
    source = ptx_tool.SOURCE.read_text(encoding="utf-8")
    assert first == ptx_tool.header(source), "run `python tools/gpu/ptx.py build`"
    assert first == ptx_tool.header(f"// A comment.\n{source}\n")
    assert first != ptx_tool.header(source.replace("IN_FLIGHT 4", "IN_FLIGHT 8"))


def test_the_ptx_is_what_the_compiler_builds(ptx_tool: Any) -> None:
    try:
        ptx_tool.library()
    except ptx_tool.NotInstalledError as missing:
        pytest.skip(str(missing))
    # In a process of its own: the compiler leaves its process in another locale.
    command = [sys.executable, ptx_tool.__file__, "check"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_check_prints_how_the_ptx_differs(
    ptx: str, ptx_tool: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ptx_tool, "built", lambda: ptx)
    assert ptx_tool.main(["check"]) == 0
    monkeypatch.setattr(ptx_tool, "built", lambda: ptx.replace("sm_80", "sm_90"))
    assert ptx_tool.main(["check"]) == 1
    printed = capsys.readouterr().out
    assert "-.target sm_80\n+.target sm_90\n" in printed
    assert "run `python tools/gpu/ptx.py build`" in printed


def test_without_the_compiler_the_tool_names_the_command_that_installs_it(
    ptx_tool: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ptx_tool, "PACKAGE", "dalsegno-has-no-such-package")
    assert ptx_tool.main(["build"]) == 3
    command = f" pip install dalsegno-has-no-such-package=={ptx_tool.VERSION}"
    assert command in capsys.readouterr().err
