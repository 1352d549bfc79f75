"""What engines have learned of their costs: one small file for each kind of engine.

1. A file that is missing, damaged or of another version is a start without knowledge, never an
   error.
2. A file is replaced as a whole.
3. What it says is a prior: an engine believes its own measurements.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from dalsegno import _native

VERSION = 1
COMPUTE = ("step_s", "token_s", "pair_s", "read_s")
TIERS = ("dram", "log", "far")
# Seconds before the first byte, and bytes per second, of tiers that nobody has measured.
TIER_PRIORS = {"dram": (1e-3, 4e9), "log": (2e-3, 1e9), "far": (2e-2, 5e8)}
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


def folder() -> Path:
    """Returns the folder of the profiles: `$DALSEGNO_PROFILES`, or the user's own."""
    if given := os.environ.get("DALSEGNO_PROFILES"):
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "dalsegno" / "profiles"


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
            "compute": _positive(learned["compute"]["coefficients"]),
            "tiers": {tier: _positive(learned[tier]["coefficients"]) for tier in TIERS},
            "learned": learned,
            "saved_at": time.time(),
        }
        # Measured before traffic, by `dalsegno profile run`.
        if table := known_of(self.engine, self.path).get("table"):
            known["table"] = table
        with contextlib.suppress(OSError):
            _replace(self.path, json.dumps(known, indent=1))


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
    _replace(path, json.dumps(known, indent=1))
    return path


def read(path: Path) -> dict[str, Any]:
    """Returns what a file says; nothing if it cannot be understood."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        numbers = [known["compute"][name] for name in COMPUTE]
        numbers += [known["tiers"][tier][key] for tier in TIERS for key in ("latency_s", "byte_s")]
        is_good = known["version"] == VERSION and all(_is_positive(one) for one in numbers)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return dict(known) if is_good else {}


def _is_positive(number: Any) -> bool:
    return type(number) in (int, float) and math.isfinite(number) and number > 0


def _positive(coefficients: Mapping[str, float]) -> dict[str, float]:
    """Returns coefficients that a model can start with: none is zero."""
    return {name: max(value, 1e-15) for name, value in coefficients.items()}


def _tier(known: Mapping[str, float] | None, prior: tuple[float, float]) -> tuple[float, float]:
    """Returns the latency of a tier and its bytes per second."""
    return prior if known is None else (known["latency_s"], 1 / known["byte_s"])


def _replace(path: Path, content: str) -> None:
    """Writes a file as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=path.name, suffix=".new", delete=False, encoding="utf-8"
    ) as file:
        file.write(content)
    try:
        Path(file.name).replace(path)
    except OSError:
        Path(file.name).unlink(missing_ok=True)
        raise
