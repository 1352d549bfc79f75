"""Fetches the tests that a package carries in its source distribution but not in its wheel.

They are written by the package's makers against their own interfaces, so an integration that passes
them does what the makers expect. Standard library only.

1. Nothing is unpacked before the whole file has a hash that the environment's lock file names.
2. Only the tests are unpacked, into `share/NAME-tests` of the environment; none of it is run.
3. The index is that of pip and uv: `UV_INDEX_URL`, `PIP_INDEX_URL`, else PyPI.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

PYPI = "https://pypi.org/simple"
TIMEOUT_S = 60.0


class FetchError(RuntimeError):
    """The tests could not be fetched; the message says why and what to do."""


def locked(lock: Path, name: str) -> tuple[str, set[str]]:
    """Returns the version of a package in a lock file, and the hashes of its files.

    Raises:
        FetchError: It is not there.
    """
    text = lock.read_text(encoding="utf-8")
    match = re.search(
        rf"^{re.escape(name)}==(\S+)((?: \\\n +--hash=sha256:\w+)+)", text, re.MULTILINE
    )
    if match is None:
        raise FetchError(f"{lock} does not pin {name} with hashes")
    return match[1], set(re.findall(r"sha256:(\w+)", match[2]))


def _read(url: str) -> bytes:
    """Returns what is found at a URL.

    Raises:
        FetchError: Nothing is.
    """
    try:
        # The scheme is the choice of the index's configuration.
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310
            content: bytes = answer.read()
            return content
    except (OSError, urllib.error.URLError) as error:
        raise FetchError(f"{url} cannot be read: {error}") from error


def address(index: str, name: str, file: str) -> str:
    """Returns where an index has a file, as its list of the package's files says.

    Raises:
        FetchError: The file is not in the list.
    """
    page = f"{index.rstrip('/')}/{name}/"
    links: list[str] = re.findall(r'href="([^"#]+)', _read(page).decode("utf-8"))
    for link in links:
        if urllib.parse.unquote(link).rpartition("/")[2] == file:
            return urllib.parse.urljoin(page, link)
    raise FetchError(f"{page} has no {file}; set UV_INDEX_URL to an index that has it")


def fetch(folder: Path, lock: Path, name: str) -> Path:
    """Unpacks the tests of a package into an environment.

    Args:
        folder: The environment.
        lock: Its lock file.
        name: The package.

    Returns:
        The folder `tests` of the package.

    Raises:
        FetchError: The file cannot be fetched, or is not the one of the lock file.
    """
    version, hashes = locked(lock, name)
    index = os.environ.get("UV_INDEX_URL") or os.environ.get("PIP_INDEX_URL") or PYPI
    stem = f"{name}-{version}"
    content = _read(address(index, name, f"{stem}.tar.gz"))
    if (found := hashlib.sha256(content).hexdigest()) not in hashes:
        raise FetchError(f"{stem}.tar.gz has the hash {found}, which {lock} does not name")
    target = folder / "share" / f"{name}-tests"
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        for one in archive:
            parts = Path(one.name).parts
            if one.isfile() and parts[:2] == (stem, "tests") and ".." not in parts:
                path = target.joinpath(*parts)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.extractfile(one).read())  # type: ignore[union-attr]
    return target / stem / "tests"
