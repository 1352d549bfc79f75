"""Folders of files with a manifest, and one archive cut into pieces that are small enough to carry.

A folder has `manifest.json`: each file with its bytes and SHA-256, and the archive, if there is
one, with its pieces in their order. The archive is a tar, compressed with zstd; window of 128 MiB.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

MANIFEST = "manifest.json"
# Base 2 logarithm of the window in bytes, of compression and decompression.
WINDOW_LOG = 27
MOST_THREADS = os.cpu_count() or 1
_CHUNK_BYTES = 1 << 20


class PiecesError(RuntimeError):
    """Files are missing or damaged, or a program is missing; the message says what to do."""


def sha256(path: Path) -> str:
    """Returns the hash of a file, in hexadecimal digits."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def write_manifest(folder: Path, pieces: Sequence[Path] = (), **more: Any) -> dict[str, Any]:
    """Describes all files of a folder in its manifest.

    Args:
        folder: The folder; an old manifest is replaced.
        pieces: Those files of it that make up an archive, in their order.
        **more: Further facts for people.

    Returns:
        The manifest.
    """
    place = folder / MANIFEST
    place.unlink(missing_ok=True)
    files = [
        {
            "name": path.relative_to(folder).as_posix(),
            "bytes": path.stat().st_size,
            "sha256": sha256(path),
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]
    manifest = {**more, "files": files, "pieces": [path.name for path in pieces]}
    place.write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    return manifest


def check(folder: Path) -> dict[str, Any]:
    """Compares the files of a folder with its manifest; returns the manifest.

    Raises:
        PiecesError: A file is missing or has other bytes.
    """
    manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    for file in manifest["files"]:
        path = folder / file["name"]
        if not path.is_file():
            raise PiecesError(f"{path} is missing: carry it, too")
        if path.stat().st_size != file["bytes"] or sha256(path) != file["sha256"]:
            raise PiecesError(f"{path} has other bytes than were packed: carry it again")
    return manifest


def pack(tree: Path, folder: Path, name: str, piece_bytes: int, level: int) -> list[Path]:
    """Packs a folder into pieces of an archive.

    Args:
        tree: What is packed; names in the archive are relative to it.
        folder: Where the pieces are put.
        name: Name of the archive.
        piece_bytes: Most bytes of a piece.
        level: Of the compression, 1 to 22.

    Returns:
        The pieces, in their order.

    Raises:
        PiecesError: There is no zstd, or it failed.
    """
    program = shutil.which("zstd")
    if program is None:
        raise PiecesError("zstd is missing: install it, for example with `apt-get install zstd`")
    options = [f"-{level}", f"--long={WINDOW_LOG}", f"-T{MOST_THREADS}", "--quiet", "--stdout"]
    if level > 19:
        options.insert(0, "--ultra")
    with tempfile.TemporaryFile(dir=folder) as whole:
        with subprocess.Popen([program, *options], stdin=subprocess.PIPE, stdout=whole) as zstd:
            assert zstd.stdin is not None
            with tarfile.open(fileobj=zstd.stdin, mode="w|", format=tarfile.GNU_FORMAT) as tar:
                for path in sorted(tree.rglob("*")):
                    tar.add(path, path.relative_to(tree).as_posix(), recursive=False, filter=_plain)
            zstd.stdin.close()
            if zstd.wait():
                raise PiecesError(f"zstd ended with exit code {zstd.returncode}")
        whole.seek(0)
        return list(_cut(whole, folder, name, piece_bytes))


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Returns a member without what differs from machine to machine."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    return member


def _cut(whole: IO[bytes], folder: Path, name: str, piece_bytes: int) -> Iterator[Path]:
    """Writes a file as pieces; yields each."""
    number = 0
    while part := whole.read(piece_bytes):
        piece = folder / f"{name}.{number:03}"
        piece.write_bytes(part)
        yield piece
        number += 1


def unpack(pieces: Sequence[Path], target: Path) -> int:
    """Unpacks an archive; returns the number of its files.

    Args:
        pieces: All of it, in their order.
        target: The folder into which it is unpacked.

    Raises:
        PiecesError: There is neither the program nor the module, or the archive is damaged.
    """
    target.mkdir(parents=True, exist_ok=True)
    count = 0
    try:
        with _decompressed(pieces) as content, tarfile.open(fileobj=content, mode="r|") as tar:
            for member in tar:
                tar.extract(member, target, filter="data")
                count += member.isfile()
    except tarfile.TarError as error:
        raise PiecesError(f"the archive is damaged: {error}") from error
    return count


@contextmanager
def _decompressed(pieces: Sequence[Path]) -> Iterator[IO[bytes]]:
    """Gives the bytes of an archive to read."""
    program = shutil.which("zstd")
    if program is not None:
        joined = "cat " + " ".join(f'"${at}"' for at in range(2, len(pieces) + 2))
        pipe = f'{joined} | "$1" -d --long={WINDOW_LOG} --quiet --stdout'
        command = ["sh", "-c", pipe, "sh", program, *map(str, pieces)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as zstd:
            assert zstd.stdout is not None
            yield zstd.stdout
        return
    try:
        zstandard: Any = importlib.import_module("zstandard")
    except ImportError:
        raise PiecesError(
            "neither the program zstd nor the Python module zstandard is here; "
            "pack.py puts a wheel of the module next to that of dalsegno"
        ) from None
    with tempfile.TemporaryFile() as whole:
        for piece in pieces:
            with piece.open("rb") as part:
                shutil.copyfileobj(part, whole, _CHUNK_BYTES)
        whole.seek(0)
        decoder = zstandard.ZstdDecompressor(max_window_size=1 << WINDOW_LOG)
        with decoder.stream_reader(whole) as content:
            yield content


def say(text: str) -> None:
    """Prints one line of progress on standard error."""
    print(text, file=sys.stderr, flush=True)
