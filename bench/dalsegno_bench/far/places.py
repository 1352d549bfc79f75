"""Where the far tier is measured: a private GlusterFS with two mounts, a directory, a bucket."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from dalsegno_bench.far.node import BLOCK_BYTES, PACK_BYTES, PUT_BLOCKS
from dalsegno_bench.object_store.servers import Bucket, running
from dalsegno_bench.shared_fs import gluster, seaweed
from dalsegno_bench.shared_fs.kinds import missing, started
from dalsegno_bench.shared_fs.mounts import SharedFs
from dalsegno_bench.shared_fs.processes import Server, until

__all__ = ["BucketPlace", "NoPlaceError", "Place", "Where", "opened", "opened_bucket"]

# A folder: a path, or a URL in a bucket.
Where = Path | str

KIND = "gluster_default"
SECTOR_BYTES = 4096
# Operations that carry bytes of files; all others are about names, locks and attributes.
DATA = frozenset({"READ", "WRITE"})


class NoPlaceError(RuntimeError):
    """There is no shared file system to measure; the message says what to do."""


@dataclass(frozen=True)
class Place:
    """A folder of a file system that two nodes mount.

    Attributes:
        a: The folder at the node that writes.
        b: The folder at the node that reads; the same as `a` with one mount.
        fs: The private file system; `None` if it was there before.
    """

    a: Path
    b: Path
    fs: SharedFs | None

    def folder(self, name: str) -> tuple[Path, Path]:
        """Makes a folder; returns its path at both nodes."""
        (self.a / name).mkdir()
        until("the other mount shows the folder", (self.b / name).is_dir)
        return self.a / name, self.b / name

    def raw_sizes(self, request_mib: int) -> tuple[int, int]:
        """Returns the bytes of a raw file, and of a request."""
        return PACK_BYTES, request_mib << 20

    def remove(self, name: str) -> None:
        """Removes a folder with its files."""
        shutil.rmtree(self.a / name, ignore_errors=True)

    def storage(self) -> tuple[Server, ...]:
        """Returns the servers that hold the bytes.

        Raises:
            NoPlaceError: They are not ours.
        """
        if self.fs is None:
            raise NoPlaceError(
                "only the servers of a private GlusterFS are stopped: leave out --dir"
            )
        return self.fs.storage

    def start_counting(self) -> None:
        """Has the bricks count operations from now on.

        Raises:
            NoPlaceError: The file system is not a private one.
        """
        gluster.profile(self._cluster().cluster, "start")

    def operations(self) -> Counter[str]:
        """Returns how many operations the bricks served so far, by name."""
        root = ET.fromstring(gluster.profile(self._cluster().cluster, "info", "cumulative"))  # noqa: S314 - of our own process
        counted: Counter[str] = Counter()
        for one in root.findall(".//brick/cumulativeStats/fopStats/fop"):
            counted[one.findtext("name", "")] += int(one.findtext("hits", "0"))
        return counted

    def _cluster(self) -> SharedFs:
        if self.fs is None:
            raise NoPlaceError("operations are counted by the bricks of a private GlusterFS only")
        return self.fs


@dataclass(frozen=True)
class BucketPlace:
    """A bucket, which both nodes use under the same URL.

    Attributes:
        bucket: The bucket.
        program: The plain client, which removes objects, too.
    """

    bucket: Bucket
    program: Path

    def folder(self, name: str) -> tuple[str, str]:
        """Returns the URL of a folder, twice. It exists when it has an object."""
        url = self.bucket.url(name)
        return url, url

    def raw_sizes(self, request_mib: int) -> tuple[int, int]:
        """Returns the bytes of an object of the plain client, and of a range: those of our packs.

        A record begins with a sector for its header, so no range begins where a server begins a
        chunk. A range of 8 MiB is one of a record.
        """
        record_bytes = PUT_BLOCKS * BLOCK_BYTES
        of_headers = PACK_BYTES // record_bytes * SECTOR_BYTES
        range_bytes = request_mib << 20
        header_bytes = SECTOR_BYTES if range_bytes == record_bytes else 0
        return PACK_BYTES + of_headers, range_bytes + header_bytes

    def storage(self) -> tuple[Server, ...]:
        """Returns the programs that serve the bucket."""
        return self.bucket.servers

    def remove(self, name: str) -> None:
        """Removes a folder with its objects."""
        given = {"mode": "remove", "dir": self.bucket.url(name)}
        given |= dict.fromkeys(("files", "file-bytes", "request-bytes", "workers"), "1")
        words = [f"--{option}={value}" for option, value in given.items()]
        subprocess.run([str(self.program), *words], check=True, timeout=300)


@contextlib.contextmanager
def opened_bucket(program: Path) -> Iterator[BucketPlace]:
    """A private S3 server with a bucket, whose credentials the environment has until it ends.

    Args:
        program: The plain client.

    Raises:
        NoPlaceError: SeaweedFS is not there.
    """
    if not seaweed.program():
        raise NoPlaceError("SeaweedFS is missing: make far-packages installs it")
    with running("seaweed") as bucket, patch.dict(os.environ, bucket.environment()):
        yield BucketPlace(bucket, program)


@contextlib.contextmanager
def opened(directory: Path | None) -> Iterator[Place]:
    """A place to measure, which ends with the block.

    Args:
        directory: A folder of a mounted file system; `None` starts a private GlusterFS.

    Raises:
        NoPlaceError: GlusterFS cannot be started here; the message says why.
    """
    if directory is not None:
        folder = Path(tempfile.mkdtemp(prefix="dalsegno-bench-far-", dir=directory))
        try:
            yield Place(folder, folder, None)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    lacking = missing(KIND)
    if lacking is not None:
        raise NoPlaceError(f"{lacking}; or name a mounted directory with --dir")
    with started(KIND) as fs:
        yield Place(fs.a, fs.b, fs)
