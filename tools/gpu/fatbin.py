"""Zeroes the machine code of GPUs that are not needed in a CUDA library.

    python tools/gpu/fatbin.py LIBRARY OUT --keep 90

nvcc puts the code for several GPUs into the sections `.nv_fatbin` and `__nv_relfatbin` of a
library. A section has fat binaries, one after the other. Each has a header and entries. An entry is
machine code for one architecture, or PTX, which the driver compiles for later ones.

1. Only payloads are zeroed. Headers, sizes and offsets stay, so the library loads as before, and
   compresses to little more than what is kept.
2. In each fat binary the driver's choice is kept: machine code for the architecture, else the
   newest PTX that it can compile, if PTX is kept.
3. A section that does not parse is an error. Nothing is written then.

All numbers are little-endian. Header of a fat binary, 16 bytes: magic (u32), version (u16), bytes
of the header (u16), bytes of all entries (u64). Header of an entry: kind (u16, 1 PTX, 2 machine
code), version (u16), bytes of the header (u32), bytes of the payload (u64), and at offset 28 the
architecture (u32, 90 for sm_90 and sm_90a).
"""

from __future__ import annotations

import argparse
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

MAGIC = 0xBA55ED50
PTX, CODE = 1, 2
SECTIONS = (".nv_fatbin", "__nv_relfatbin")

_FAT_HEADER = struct.Struct("<IHHQ")
_ENTRY_HEADER = struct.Struct("<HHIQ")
_ARCHITECTURE_AT = 28
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
# A fat binary begins at a multiple of this many bytes of its section.
_ALIGNMENT = 8


class FatbinError(ValueError):
    """A file is not an ELF library of 64 bits, or a section of it does not parse."""


@dataclass(frozen=True)
class Entry:
    """The code of a fat binary for one architecture.

    Attributes:
        kind: `PTX` or `CODE`.
        architecture: 90 for sm_90 and sm_90a.
        offset: Where its payload begins, in bytes from the start of the file.
        size: Bytes of its payload.
    """

    kind: int
    architecture: int
    offset: int
    size: int


@dataclass(frozen=True)
class Stripped:
    """What was done to a library, in bytes of payload."""

    kept: int
    zeroed: int


def sections(library: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Yields offset and size, in bytes, of the sections with fat binaries.

    Args:
        library: An ELF file of 64 bits, little-endian.

    Raises:
        FatbinError: It is another file.
    """
    if library[:6] != b"\x7fELF\x02\x01":
        raise FatbinError("expected an ELF file of 64 bits, little-endian")
    try:
        (start,) = struct.unpack_from("<Q", library, 0x28)
        each, count, names = struct.unpack_from("<HHH", library, 0x3A)
        headers = [_SECTION_HEADER.unpack_from(library, start + at * each) for at in range(count)]
        names_at = headers[names][4] if headers else 0
        for header in headers:
            begin = names_at + header[0]
            name = library[begin : library.index(b"\0", begin)].decode("ascii", "replace")
            if name in SECTIONS:
                yield header[4], header[5]
    except (struct.error, IndexError, ValueError) as error:
        raise FatbinError(f"the section headers do not parse: {error}") from error


def fat_binaries(library: bytes | bytearray, offset: int, size: int) -> Iterator[list[Entry]]:
    """Yields the entries of each fat binary of a section.

    Args:
        library: The file.
        offset: Where the section begins, in bytes.
        size: Bytes of the section.

    Raises:
        FatbinError: Something in the section is neither a fat binary nor padding.
    """
    at, end = offset, offset + size
    if end > len(library):
        raise FatbinError(f"a section ends at {end}, behind the file's {len(library)} bytes")
    while at + _FAT_HEADER.size <= end:
        magic, _, header, content = _FAT_HEADER.unpack_from(library, at)
        if magic == 0:
            at += _ALIGNMENT
            continue
        if magic != MAGIC or at + header + content > end:
            raise FatbinError(f"expected a fat binary at byte {at}")
        first = at + header
        yield list(_entries(library, first, first + content))
        at = first + content
        at += -(at - offset) % _ALIGNMENT


def _entries(library: bytes | bytearray, at: int, end: int) -> Iterator[Entry]:
    """Yields the entries between two offsets."""
    while at + _ARCHITECTURE_AT + 4 <= end:
        kind, _, header, size = _ENTRY_HEADER.unpack_from(library, at)
        (architecture,) = struct.unpack_from("<I", library, at + _ARCHITECTURE_AT)
        if header < _ARCHITECTURE_AT + 4 or at + header + size > end:
            raise FatbinError(f"expected an entry of a fat binary at byte {at}")
        yield Entry(kind, architecture, at + header, size)
        at += header + size


def needed(entries: Sequence[Entry], architecture: int, *, keep_ptx: bool) -> set[Entry]:
    """Returns what the driver uses of a fat binary on a GPU.

    Args:
        entries: Of one fat binary.
        architecture: Of the GPU; 90 for sm_90.
        keep_ptx: Whether PTX is kept where there is no machine code.
    """
    code = {one for one in entries if (one.kind, one.architecture) == (CODE, architecture)}
    if code or not keep_ptx:
        return code
    texts = [one for one in entries if one.kind == PTX and one.architecture <= architecture]
    newest = max((one.architecture for one in texts), default=0)
    return {one for one in texts if one.architecture == newest}


def strip(library: bytearray, architecture: int, *, keep_ptx: bool = True) -> Stripped:
    """Zeroes what a GPU does not use of a library, in place.

    Args:
        library: An ELF file of 64 bits.
        architecture: Of the GPU; 90 for sm_90.
        keep_ptx: Whether PTX is kept where there is no machine code.

    Returns:
        How many bytes were kept and zeroed; both 0 for a library without code for GPUs.

    Raises:
        FatbinError: The file does not parse; it is unchanged.
    """
    found = [
        entries
        for offset, size in sections(library)
        for entries in fat_binaries(library, offset, size)
    ]
    kept = zeroed = 0
    for entries in found:
        stay = needed(entries, architecture, keep_ptx=keep_ptx)
        for one in entries:
            if one in stay:
                kept += one.size
            else:
                library[one.offset : one.offset + one.size] = bytes(one.size)
                zeroed += one.size
    return Stripped(kept, zeroed)


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        description="Zero the machine code of other GPUs in a CUDA library."
    )
    parser.add_argument("library", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--keep", type=int, default=90, metavar="SM", help="default: 90")
    parser.add_argument("--no-ptx", action="store_true", help="zero all PTX, too")
    given = parser.parse_args(arguments)
    content = bytearray(given.library.read_bytes())
    try:
        done = strip(content, given.keep, keep_ptx=not given.no_ptx)
    except FatbinError as error:
        print(f"fatbin: {given.library}: {error}", file=sys.stderr)
        return 1
    given.out.write_bytes(content)
    print(f"{given.library.name}: kept {done.kept / 1e6:.1f} MB, zeroed {done.zeroed / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
