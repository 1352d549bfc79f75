"""``dalsegno profile``: what engines have learned of their costs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from dalsegno import InvalidError, profiles
from dalsegno.cli import show
from dalsegno.cli.options import AsJson

# Tokens of the prompts in the table of predictions.
PROMPTS = (1024, 4096, 16_384, 65_536)
# Tokens that a step computes at most, in that table.
CHUNK = 8192
UNITS = {
    "step_s": "a step",
    "token_s": "a token",
    "pair_s": "a pair of tokens",
    "read_s": "a token that is read",
}


def profile() -> None:
    """Show what engines have learned of their costs.

    With `"load_policy": "auto"` an engine loads only what brings the first token sooner. It learns
    from its own steps and loads, and keeps that in a small file for the next engine of the kind.

    Exit codes: those of the subcommand.
    """


def profile_show(
    *,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder of the profiles; by default the user's own."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain every number that decides what is loaded.

    For each kind of engine: how long it computes, how fast each tier loads, how often both were
    measured, and what that means for prompts of some lengths. "high" is a factor: most loads take
    at most so many times what is expected, and that is what decisions count with.

    Example:
      dalsegno profile show

    Exit codes: 0 shown, 2 there is no profile.
    """
    place = profiles.folder() if folder is None else folder
    known = {path: profiles.read(path) for path in sorted(place.glob("*.json"))}
    found = {path: one for path, one in known.items() if one}
    if not found:
        raise InvalidError(
            f"{place} has no profile yet; an engine writes one when it ends, "
            'unless "keep_profile" is false'
        )
    if as_json:
        show.as_json({str(path): one for path, one in found.items()})
        return
    for at, (path, one) in enumerate(found.items()):
        if at:
            print()
        _show(path, one)


def _show(path: Path, known: dict[str, Any]) -> None:
    engine, learned = known["engine"], known["learned"]
    age_s = max(0.0, time.time() - known["saved_at"])
    print(f"{engine.get('model', '')} on {engine.get('device', '')}, {engine.get('engine', '')}")
    print(f"store {engine.get('store', '')}; saved {age_s / 3600:.1f} h ago in {path}\n")
    compute = learned["compute"]
    rows = [
        (UNITS[name], _seconds(compute["coefficients"][name]), "", "") for name in profiles.COMPUTE
    ]
    rows[0] = (*rows[0][:2], f"{compute['measured']:,}", f"{compute['drifts']:,}")
    show.table(("computing", "time>", "measured>", "changes>"), rows)
    print()
    show.table(
        ("tier", "latency>", "speed>", "high>", "measured>", "changes>"),
        [_tier(tier, learned[tier]) for tier in profiles.TIERS],
    )
    print()
    _predictions(known)


def _tier(tier: str, learned: dict[str, Any]) -> tuple[str, ...]:
    coefficients, measured = learned["coefficients"], learned["measured"]
    speed = 1 / max(coefficients["byte_s"], 1e-15)
    return (
        tier,
        _seconds(coefficients["latency_s"]),
        f"{show.byte_count(int(speed))}/s",
        f"{learned['high']:.2f}",
        f"{measured:,}" if measured else "assumed",
        f"{learned['drifts']:,}",
    )


def _predictions(known: dict[str, Any]) -> None:
    """Prints how long prompts of some lengths are computed and loaded."""
    model = profiles.Profile(known["engine"], profiles.ComputePrior(1, 1, 1, 1), None)
    costs = model.model_of(known)
    token_bytes = float(known["engine"]["block_bytes"]) / float(known["engine"]["block_tokens"])
    rows = []
    for tokens in PROMPTS:
        computed_s = costs.request_s(0.0, float(tokens), float(CHUNK))
        loads = [costs.load_s(tier, tokens * token_bytes) for tier in profiles.TIERS]
        marks = [f"{_seconds(one)}{' *' if one < computed_s else '  '}" for one in loads]
        rows.append((f"{tokens:,}", _seconds(computed_s), *marks))
    show.table(("prompt>", "computed>", *(f"from {tier}>" for tier in profiles.TIERS)), rows)
    print("* loading is faster than computing")


def _seconds(seconds: float) -> str:
    """Returns a time with three digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
