"""``dalsegno profile``: what engines have learned of their costs."""

from __future__ import annotations

import time
from collections.abc import Sequence
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
# Tokens of prompts, to find from where on loading is faster.
LENGTHS = tuple(64 * tokens for tokens in range(1, 2049))
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
    measured, and what that means for prompts of some lengths. Decisions count with what most loads
    do not exceed: "high" times what is expected, and "late" more.

    Example:
      dalsegno profile show

    Exit codes: 0 shown, 2 there is no profile.
    """
    place = profiles.folder() if folder is None else folder
    known = {path: profiles.read(path) for path in profiles.files(place)}
    found = {path: one for path, one in known.items() if one}
    if not found:
        raise InvalidError(
            f"{place or 'a user without a home directory'} has no profile yet; "
            'an engine writes one when it ends, unless "keep_profile" is false'
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
        (UNITS[name], seconds(compute["coefficients"][name]), "", "") for name in profiles.COMPUTE
    ]
    rows[0] = (*rows[0][:2], f"{compute['measured']:,}", f"{compute['drifts']:,}")
    show.table(("computing", "time>", "measured>", "changes>"), rows)
    print()
    show_tiers(learned)
    print()
    if declined := known.get("saves_declined"):
        loaded, computed = seconds(declined["loaded_s"]), seconds(declined["computed_s"])
        print(f"some blocks are kept in the pool only: loading {declined['tokens']:,} tokens from")
        print(f"the disk takes {loaded}, computing them {computed}\n")
    show_predictions(known, PROMPTS)


def show_tiers(learned: dict[str, Any]) -> None:
    """Prints how fast each tier loads."""
    show.table(
        ("tier", "latency>", "speed>", "high>", "late>", "measured>", "changes>"),
        [_tier(tier, learned[tier]) for tier in profiles.TIERS],
    )


def _tier(tier: str, learned: dict[str, Any]) -> tuple[str, ...]:
    coefficients, measured = learned["coefficients"], learned["measured"]
    speed = 1 / max(coefficients["byte_s"], 1e-15)
    return (
        tier,
        seconds(coefficients["latency_s"]),
        f"{show.byte_count(int(speed))}/s",
        f"{learned['high']:.2f}",
        seconds(learned["late_s"]),
        f"{measured:,}" if measured else "assumed",
        f"{learned['drifts']:,}",
    )


def show_predictions(known: dict[str, Any], prompts: Sequence[int]) -> None:
    """Prints how long prompts of some lengths are computed and loaded."""
    kind = profiles.Profile(known["engine"], profiles.ComputePrior(1, 1, 1, 1), None)
    costs = kind.model_of(known)
    try:
        engine = known["engine"]
        token_bytes = float(engine["block_bytes"]) / float(engine["block_tokens"])
    except (LookupError, ValueError, ZeroDivisionError):
        # The profile of another program, which does not say how large its blocks are.
        return

    def times(tokens: int) -> tuple[float, dict[str, float]]:
        loads = {tier: costs.load_s(tier, tokens * token_bytes) for tier in profiles.TIERS}
        return costs.request_s(0.0, float(tokens), float(CHUNK)), loads

    rows = []
    for tokens in prompts:
        computed_s, loads = times(tokens)
        marks = [f"{seconds(one)}{' *' if one < computed_s else '  '}" for one in loads.values()]
        rows.append((f"{tokens:,}", seconds(computed_s), *marks))
    show.table(("prompt>", "computed>", *(f"from {tier}>" for tier in profiles.TIERS)), rows)
    print("* loading is faster than computing")
    for tier in profiles.TIERS:
        wins = [times(tokens)[1][tier] < times(tokens)[0] for tokens in LENGTHS]
        print(f"{tier}: {_where(wins)}")


def _where(wins: Sequence[bool]) -> str:
    """Returns from which length on loading is faster, from whether it is for each of `LENGTHS`."""
    last = max((at for at, is_faster in enumerate(wins) if not is_faster), default=-1)
    if last < 0:
        return "loading is faster for prompts of all lengths"
    if last + 1 == len(wins):
        return f"computing is faster for prompts of {LENGTHS[-1]:,} tokens"
    return f"loading is faster from {LENGTHS[last + 1]:,} tokens on"


def seconds(number: float) -> str:
    """Returns a time with three digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number * 1e9:.3g} ns"
