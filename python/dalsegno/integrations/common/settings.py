"""Checks of settings, one for each kind of value.

1. A check returns the value, or raises `InvalidError` with what is allowed.
2. The error of an unknown key names the nearest known one.
3. A setting whose value is None counts as not given.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Self

import dalsegno
from dalsegno import InvalidError
from dalsegno.paths import SOCKET_PREFIX, far_place, is_owned, store_path

Check = Callable[[str, object], Any]

CODECS = ("none", "zstd")
FAR_WRITES = ("put", "second-put", "evict")
# Bytes of a number in a KV cache, by the name of the cache's dtype.
_WIDTHS = {"bfloat16": 2, "float": 4, "float16": 2, "float32": 4, "half": 2}
# Dtypes with these prefixes have one byte: `fp8_e4m3`, `fp8_ds_mla` ...
_BYTE_WIDE = ("float8", "fp8", "int8")


def byte_count(name: str, value: object) -> int:
    """Reads a byte count such as `4096`, `"2GiB"` or `"2Gi"`, as the store's own settings do.

    Raises:
        InvalidError: It is neither.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str):
        with contextlib.suppress(InvalidError):
            return dalsegno.parse_bytes(value)
    raise InvalidError(f'{name} is {value!r}; it must be bytes, such as 1073741824 or "1GiB"')


def element_bytes(dtype: str) -> int | None:
    """Returns the bytes of a number in a KV cache.

    Args:
        dtype: The name of the cache's dtype, such as `bfloat16` or `fp8_e4m3`.

    Returns:
        None for numbers of less than a byte, and for unknown names.
    """
    name = dtype.removeprefix("torch.")
    return 1 if name.startswith(_BYTE_WIDE) else _WIDTHS.get(name)


def check_keys(given: Iterable[str], known: Iterable[str], where: str) -> None:
    """Checks that every key is known."""
    names = sorted(known)
    for key in given:
        if key not in names:
            nearest = difflib.get_close_matches(key, names, 1, 0.0)[0]
            raise InvalidError(f"unknown key {key!r} in {where}; did you mean {nearest!r}?")


def seconds(name: str, value: object, most: float = 3600.0) -> float:
    """Checks a number of seconds."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= most:
        return float(value)
    raise InvalidError(f"{name} is {value!r}; it must be seconds above 0 and at most {most:g}")


def part(name: str, value: object) -> float:
    """Checks a part of a whole, 0 to 1."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1:
        return float(value)
    raise InvalidError(f"{name} is {value!r}; it must be a number from 0 to 1")


def count(name: str, value: object, most: int = 100_000) -> int:
    """Checks a number of things."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= most:
        return value
    raise InvalidError(f"{name} is {value!r}; it must be a whole number from 1 to {most}")


def switch(name: str, value: object) -> bool:
    """Reads true or false."""
    if isinstance(value, bool):
        return value
    raise InvalidError(f"{name} is {value!r}; it must be true or false")


def text(name: str, value: object, most: int = 1024) -> str:
    """Checks a short text."""
    if isinstance(value, str):
        # A lone surrogate, as of an argument that is not UTF-8, has no encoding.
        with contextlib.suppress(UnicodeEncodeError):
            if len(value.encode()) <= most:
                return value
    raise InvalidError(f"{name} is {value!r}; it must be text of at most {most} bytes in UTF-8")


def one_of(*allowed: str) -> Check:
    """Returns a check that a value is one of some words."""

    def check(name: str, value: object) -> str:
        if value in allowed:
            return str(value)
        raise InvalidError(f"{name} is {value!r}; it must be one of {', '.join(allowed)}")

    return check


def mapping(name: str, value: object) -> dict[str, Any]:
    """Checks a dictionary with text as keys."""
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return dict(value)
    raise InvalidError(f"{name} is {value!r}; it must be an object")


def far_options(name: str, value: object) -> dict[str, Any]:
    """Checks a `mapping` without repeating its value: what was taken for it may be secret."""
    try:
        return mapping(name, value)
    except InvalidError:
        kind = type(value).__name__
        raise InvalidError(f"{name} is of the kind {kind}; it must be an object") from None


def codec(name: str, value: object) -> str:
    """Checks the name of a codec."""
    if value in CODECS:
        return str(value)
    raise InvalidError(f'{name} is {value!r}; it must be "none" or "zstd"')


def checked(given: Mapping[str, Any], checks: Mapping[str, Check]) -> dict[str, Any]:
    """Returns what is given of the settings that have a check, as the checks return it.

    Raises:
        InvalidError: A value is not allowed.
    """
    return {
        name: check(name, given[name])
        for name, check in checks.items()
        if given.get(name) is not None
    }


def far_write(name: str, value: object) -> str:
    """Checks when a block is written to the far directory."""
    if value in FAR_WRITES:
        return str(value)
    raise InvalidError(f"{name} is {value!r}; it must be one of {', '.join(FAR_WRITES)}")


# Settings of the store that need no "store": they stand beside the integration's own.
_OF_STORE: dict[str, Check] = {
    "capacity": byte_count,
    "far": lambda name, value: far_place(text(name, value, 4096), name),
    "far_options": far_options,
    "far_capacity": byte_count,
    "far_workers": lambda name, value: count(name, value, 64),
    "far_write": far_write,
    "far_flush_s": seconds,
}

_CHECKS: dict[str, Check] = {
    **_OF_STORE,
    "codec": codec,
    "store": mapping,
    "load_policy": one_of("auto", "always", "never"),
    "load_guard_s": seconds,
    "load_objective": one_of("auto", "latency", "throughput"),
    "keep_profile": switch,
    "load_timeout_s": seconds,
    "store_timeout_s": seconds,
    "salt": text,
    "weights_fingerprint": text,
}


@dataclass(frozen=True)
class StoreSettings:
    """The settings that all integrations have; each adds those of its engine.

    A block is the engine's unit: vLLM's block, SGLang's page, LMCache's object.

    Attributes:
        path: Directory of the store; created if missing. One process owns a store, so replicas and
            ranks in processes of their own have a folder each in it, unless `dalsegno serve` owns
            the directory. Or `unix:` and the path of a server's socket.
        capacity: Most bytes of disk, such as `"200GiB"`; the store's default if not given.
        far: What the stores of other hosts use too: a directory of a mounted file system, a place
            in an object store, such as `"s3://bucket/prefix"`, or in a Mooncake cluster. None: no
            far tier.
        far_options: How what a URL names is reached: `endpoint`, `region`, `ca_file`,
            `path_style`, `storage_class`, `encryption`, and for a cluster `catalogs`, `replicas`,
            `protocol`, `devices`, `metadata_server`. Credentials come from the environment.
        far_capacity: Most bytes there of this store, what it wrote before it was opened again
            included; the store's default if not given.
        far_workers: Requests to the far directory at a time, 1 to 64; the store's default if not
            given.
        far_write: When a block is written there, `put`, `second-put` or `evict`; the store's
            default if not given.
        far_flush_s: Seconds until blocks are published there even if their pack is not full; the
            store's default if not given.
        codec: `zstd` compresses blocks without loss, `none` does not. It is not part of the
            identity: blocks stored with one codec are found with the other.
        store: Further settings of the store, as `dalsegno.open` takes them. A setting that is given
            here as well must have the same value.
        load_policy: Which blocks are loaded: `auto`, as many as bring the first token sooner;
            `always`, all; `never`, none.
        load_guard_s: Seconds by which a first token may come later than without us; at least 2% of
            it are allowed.
        load_objective: What `auto` makes short: `latency`, the first token of each request;
            `throughput`, what the engine computes; `auto`, the first unless requests wait.
        keep_profile: Whether what was learned of costs is kept for the next engine of the kind.
        load_timeout_s: Seconds after which blocks that are still being read are misses.
        store_timeout_s: Seconds after which blocks that are still being written fail.
        salt: Separates tenants: stores with different salts never share a block.
        weights_fingerprint: Identifies the model's weights where their files cannot be read. If you
            set it, make sure that equal fingerprints mean equal weights.
    """

    path: Path
    capacity: int | None = None
    far: str | None = None
    far_options: Mapping[str, Any] | None = None
    far_capacity: int | None = None
    far_workers: int | None = None
    far_write: str | None = None
    far_flush_s: float | None = None
    codec: str = "none"
    store: Mapping[str, Any] = field(default_factory=dict)
    load_policy: str = "auto"
    load_guard_s: float = 0.005
    load_objective: str = "auto"
    keep_profile: bool = True
    load_timeout_s: float = 10.0
    store_timeout_s: float = 30.0
    salt: str = ""
    weights_fingerprint: str = ""

    CHECKS: ClassVar[Mapping[str, Check]] = _CHECKS

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Returns the names of all settings."""
        return tuple(item.name for item in fields(cls))

    @classmethod
    def read(cls, given: Mapping[str, Any], where: str, who: str) -> Self:
        """Checks what a configuration gives.

        Args:
            given: Setting -> value.
            where: Where it is given, for messages.
            who: What needs a directory, for messages.

        Raises:
            InvalidError: A key is unknown or missing, or a value is not allowed.
        """
        check_keys(given, cls.names(), where)
        if not given.get("path"):
            raise InvalidError(
                f'{who} needs "path", the directory of the store, or "unix:" and a server\'s socket'
            )
        path = Path(store_path(text("path", given["path"], 4096), "path"))
        settings = cls(path=path, **checked(given, cls.CHECKS))
        settings._check_duplicates(where)
        return settings

    def _check_duplicates(self, where: str) -> None:
        """Refuses a setting that has one value of its own and another one in `store`."""
        for name, own in self._given().items():
            if name in self.store and _OF_STORE[name](name, self.store[name]) != own:
                raise InvalidError(
                    f"{name} has two values in {where}: {own!r}, and {self.store[name]!r} in "
                    '"store"; give one'
                )

    def _given(self) -> dict[str, Any]:
        """Returns the settings of the store that are given outside of `store`."""
        values = {name: getattr(self, name) for name in _OF_STORE}
        return {name: value for name, value in values.items() if value is not None}

    def place(self, folder: str) -> str:
        """Returns what a process opens: the store of a server, or else one of its own.

        If a process owns the directory itself, that is a server: several processes of an engine own
        folders in it.

        Args:
            folder: Name of the folder that this process has in the directory if nobody serves it;
                nothing if it is the only process.
        """
        shared = str(self.path).startswith(SOCKET_PREFIX) or is_owned(self.path)
        return str(self.path if shared else self.path / folder)

    def store_settings(self) -> dict[str, Any]:
        """Returns the settings with which the store is opened.

        Its DRAM tier is off unless asked for: the engine keeps the same blocks in memory itself.
        """
        return {"dram": 0, **self.store, **self._given()}
