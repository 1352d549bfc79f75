"""What engines have learned of their costs: one small file for each kind of engine.

1. A file that is missing, damaged, far too large or of another version is a start without
   knowledge, never an error. So are numbers that no engine has.
2. A file is replaced as a whole.
3. What it says is a prior: an engine believes its own measurements.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from dalsegno import _native
from dalsegno.integrations.common.cache_folder import cache_directory, replace_file

VERSION = 1
COMPUTE = ("step_s", "token_s", "pair_s", "read_s")
TIERS = ("dram", "log", "far")
TRANSFER = ("latency_s", "byte_s")
# What a model says of how it learned.
COUNTS = ("measured", "drifts", "low", "high", "late_s")
# Seconds before the first byte, and bytes per second, of tiers that nobody has measured.
TIER_PRIORS = {"dram": (1e-3, 4e9), "log": (2e-3, 1e9), "far": (2e-2, 5e8)}
# Seconds that a coefficient has at least, and that none of an engine or a tier exceeds.
LEAST_S = 1e-15
MOST_S = {
    "step_s": 1e2,
    "token_s": 1.0,
    "pair_s": 1e-3,
    "read_s": 1e-2,
    "latency_s": 1e3,
    "byte_s": 1e-3,
}
# A file is a few KiB.
MOST_BYTES = 1 << 20
# How often a running engine saves what it has learned.
SAVE_EVERY_S = 600.0


@dataclass(frozen=True)
class ComputePrior:
    """Seconds that an engine is assumed to compute, before it was measured.

    Attributes:
        step_s: For a step.
        token_s: For a token.
        pair_s: For a pair of tokens of which one attends to the other.
        read_s: For a token whose keys and values are read.
    """

    step_s: float
    token_s: float
    pair_s: float
    read_s: float

    @classmethod
    def of_shape(
        cls,
        layers: int,
        token_bytes: float,
        *,
        is_cpu: bool,
        operations_per_s: float | None = None,
    ) -> Self:
        """Returns what is assumed of a model, from the sizes of its KV cache.

        A model has about 16 times as many parameters in a layer as its KV cache has bytes for a
        token in it, squared. It is only a start.

        Args:
            layers: Layers of the model.
            token_bytes: Bytes of a token in the KV cache of one worker.
            is_cpu: Whether a CPU computes.
            operations_per_s: As the device was measured; None: what such devices have.
        """
        operations, bytes_per_s = (2e11, 2e10) if is_cpu else (3e14, 2e12)
        operations = operations_per_s or operations
        width = max(64.0, token_bytes / layers)
        return cls(
            step_s=2e-3 if is_cpu else 3e-4 * layers,
            token_s=2 * 12 * width * width * layers / operations,
            pair_s=4 * width * layers / operations,
            read_s=token_bytes / bytes_per_s,
        )


def folder() -> Path | None:
    """Returns the folder of the profiles: `$DALSEGNO_PROFILES`, or the user's own.

    None for a user without a home directory.
    """
    if given := os.environ.get("DALSEGNO_PROFILES"):
        return Path(given)
    cache = cache_directory()
    return cache / "profiles" if cache else None


def files(place: Path | None) -> list[Path]:
    """Returns the files of profiles in a folder, in the order of their names."""
    return [] if place is None else sorted(place.glob("*.json"))


class Profile:
    """What is known of one kind of engine.

    Attributes:
        path: Its file; None if it is kept nowhere.
        engine: What the kind is.
        notes: What else the file says, by name; the names of the file's own fields are not allowed.
    """

    def __init__(
        self,
        engine: Mapping[str, str],
        prior: ComputePrior,
        place: Path | None,
        tiers: Mapping[str, tuple[float, float]] = MappingProxyType({}),
    ) -> None:
        """Reads nothing yet.

        Args:
            engine: What makes engines of one kind: model, device, version, parallel sizes, store.
            prior: What is assumed without a file.
            place: The folder of profiles; None: nothing is read or saved.
            tiers: What is assumed of tiers without a file: latency in s, and bytes per second.
        """
        self.engine, self._prior = dict(engine), prior
        self._tiers = {**TIER_PRIORS, **tiers}
        self.path = path_of(engine, place)
        self.notes: dict[str, Any] = {}
        self._saved_at = time.monotonic()

    def model(self) -> Any:
        """Returns a model that starts with what is known."""
        return self.model_of(known_of(self.engine, self.path))

    def model_of(self, known: Mapping[str, Any]) -> Any:
        """Returns a model that starts with what a file says.

        Args:
            known: From `read`; what it lacks is assumed.
        """
        compute = known.get("compute", vars(self._prior))
        tiers = known.get("tiers", {})
        return _native.CostModel(
            compute=tuple(compute[name] for name in COMPUTE),
            tiers={tier: _tier(tiers.get(tier), self._tiers[tier]) for tier in TIERS},
        )

    def keep(self, model: Any) -> None:
        """Saves what a model has learned, if that was long ago; another thread writes the file."""
        if self.path is None or time.monotonic() - self._saved_at < SAVE_EVERY_S:
            return
        self._saved_at = time.monotonic()
        with contextlib.suppress(RuntimeError):
            # No thread can be started: it is kept when the engine ends.
            threading.Thread(target=self.save, args=(model,), daemon=True).start()

    def save(self, model: Any) -> None:
        """Saves what a model has learned; a folder that cannot be written is no error."""
        if self.path is None:
            return
        learned = model.explain()
        known = {
            **self.notes,
            "version": VERSION,
            "engine": self.engine,
            "compute": _possible(learned["compute"]["coefficients"]),
            "tiers": {tier: _possible(learned[tier]["coefficients"]) for tier in TIERS},
            "learned": learned,
            "saved_at": time.time(),
        }
        # Measured before traffic, by `dalsegno profile run`.
        if table := known_of(self.engine, self.path).get("table"):
            known["table"] = table
        with contextlib.suppress(OSError):
            replace_file(self.path, json.dumps(known, indent=1))


def path_of(engine: Mapping[str, str], place: Path | None) -> Path | None:
    """Returns the file of a kind of engine in a folder of profiles; None without one."""
    name = hashlib.sha256(json.dumps(dict(engine), sort_keys=True).encode()).hexdigest()[:16]
    return None if place is None else place / f"{name}.json"


def known_of(engine: Mapping[str, str], path: Path | None) -> dict[str, Any]:
    """Returns what a file says of a kind of engine; nothing without a good one."""
    known = {} if path is None else read(path)
    return known if known.get("engine") == engine else {}


def write(known: Mapping[str, Any], place: Path) -> Path:
    """Writes what is known of a kind of engine, and returns the file.

    Args:
        known: As `read` returns it.
        place: The folder of profiles.

    Raises:
        OSError: It cannot be written.
    """
    path = path_of(known["engine"], place)
    assert path is not None
    replace_file(path, json.dumps(known, indent=1))
    return path


def read(path: Path) -> dict[str, Any]:
    """Returns what a file says; nothing if it cannot be understood.

    Every field that an engine keeps is there, with the right type, and numbers are possible ones.
    """
    try:
        known = json.loads(_content(path))
        learned, engine = known["learned"], known["engine"]
        good = [known["version"] == VERSION, _is_number(known["saved_at"], LEAST_S, 1e12)]
        good += [isinstance(one, str) for pair in engine.items() for one in pair]
        for of, names in (("compute", COMPUTE), *((tier, TRANSFER) for tier in TIERS)):
            start = known["compute"] if of == "compute" else known["tiers"][of]
            good += [_is_number(start[name], LEAST_S, MOST_S[name]) for name in names]
            good += [_is_number(learned[of]["coefficients"][name]) for name in names]
            good += [_is_number(learned[of][name]) for name in COUNTS]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}
    return dict(known) if all(good) else {}


def _content(path: Path) -> str:
    """Returns the content of a file; anything else, such as a pipe, might never answer.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no file, or no text, or too large.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_size > MOST_BYTES:
            raise ValueError(f"{path} is no small file")
        return file.read(MOST_BYTES).decode()


def _is_number(value: Any, least: float = 0.0, most: float = 1e18) -> bool:
    return type(value) in (int, float) and least <= value <= most


def _possible(coefficients: Mapping[str, float]) -> dict[str, float]:
    """Returns coefficients that a model can start with: none is zero, and none too large."""
    return {name: min(max(value, LEAST_S), MOST_S[name]) for name, value in coefficients.items()}


def _tier(known: Mapping[str, float] | None, prior: tuple[float, float]) -> tuple[float, float]:
    """Returns the latency of a tier and its bytes per second."""
    return prior if known is None else (known["latency_s"], 1 / known["byte_s"])
