"""Verdicts over the records of cells: targets, and that every answer and every byte is right."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpu.cells import median

Record = dict[str, Any]

# Two candidates of a token are tied if their log probabilities differ by at most this: in bfloat16
# the order in which numbers are added decides between them.
TIE = 0.15
# What one copy from registered memory reaches.
BUS_BYTES_PER_S = 55e9
# Cells of vLLM alone: what they leave is not ours.
OF_VLLM = ("plain", "cpu-tier", "fs-tier", "latency-cpu-tier")
# By which a first token may come later than without us.
GUARD_S = 0.005
MET, MISSED, UNKNOWN = "met", "MISSED", "not measured"


@dataclass(frozen=True)
class Verdict:
    """What was found about one claim.

    Attributes:
        claim: In a few words.
        target: What it has to be.
        found: What it is.
        verdict: `MET`, `MISSED` or `UNKNOWN`.
    """

    claim: str
    target: str
    found: str
    verdict: str

    def plain(self) -> dict[str, str]:
        """Returns it for JSON."""
        return asdict(self)


def at_most(claim: str, value: float | None, target: float, unit: str = "x") -> Verdict:
    """Returns a verdict about a number that must not exceed a target."""
    if value is None or math.isnan(value):
        return Verdict(claim, f"at most {target:g}{unit}", "", UNKNOWN)
    word = MET if value <= target else MISSED
    return Verdict(claim, f"at most {target:g}{unit}", f"{value:.3g}{unit}", word)


def none_of(claim: str, bad: Sequence[str], looked_at: int) -> Verdict:
    """Returns a verdict about something that must not be."""
    if not looked_at:
        return Verdict(claim, "none", "", UNKNOWN)
    found = f"none of {looked_at}" if not bad else f"{len(bad)} of {looked_at}: {'; '.join(bad)}"
    return Verdict(claim, "none", found, MISSED if bad else MET)


def rows_of(records: Sequence[Record], part: str = "", cell: str = "") -> Iterator[Record]:
    """Yields the rows with answers of some cells, each with the name of its cell."""
    for record in records:
        if part in ("", record["part"]) and cell in ("", record["cell"]):
            for row in record.get("rows", ()):
                if "tokens" in row:
                    yield {"cell": record["cell"], **row}


def first_token_s(records: Sequence[Record], cell: str, kind: str, n: int) -> float | None:
    """Returns the median time to the first token, in seconds; None if it was not measured."""
    found = [
        row["ttft_s"]
        for row in rows_of(records, "engines", cell)
        if row["kind"] == kind and row["n"] == n
    ]
    return median(found) if found else None


def longest(records: Sequence[Record]) -> int:
    """Returns the tokens of the longest prompt."""
    return max((row["n"] for row in rows_of(records, "engines")), default=0)


def same_answer(one: Record, other: Record) -> str:
    """Compares two answers to a prompt.

    Returns:
        `same`; `tie` if the first token that differs is tied with the other one in both; else
        `differs`.
    """
    pairs = enumerate(zip(one["tokens"], other["tokens"], strict=True))
    at = next((place for place, (a, b) in pairs if a != b), None)
    if at is None:
        return "same"
    tokens = one["tokens"][at], other["tokens"][at]
    for answer in (one, other):
        known = dict(map(tuple, answer["top"][at]))
        if any(token not in known for token in tokens):
            return "differs"
        if abs(known[tokens[0]] - known[tokens[1]]) > TIE:
            return "differs"
    return "tie"


def answers(records: Sequence[Record]) -> Verdict:
    """Returns whether every answer has the tokens that were computed for its prompt."""
    computed: dict[tuple[int, int], Record] = {}
    rows = list(rows_of(records))
    for row in rows:
        if row["kind"].startswith("recompute"):
            computed.setdefault((row["n"], row["seed"]), row)
    bad, ties, looked_at = [], 0, 0
    for row in rows:
        right = row.get("right") or computed.get((row["n"], row["seed"]))
        if right is None:
            continue
        looked_at += 1
        found = same_answer(right, row)
        ties += found == "tie"
        if found == "differs":
            bad.append(f"{row['cell']} {row['kind']} {row['n']}")
    claim = f"answers with other tokens than computed ({ties} ties)"
    return none_of(claim, bad, looked_at)


def cached_bytes(records: Sequence[Record]) -> Verdict:
    """Returns whether loads brought the bytes that an engine had computed."""
    computed: dict[tuple[int, int], set[str]] = {}
    rows = list(rows_of(records))
    for row in rows:
        if row["kind"].startswith("recompute"):
            computed.setdefault((row["n"], row["seed"]), set()).add(row["digest"])
    bad, looked_at = [], 0
    for row in rows:
        right = (
            {row["right"]["digest"]} if "right" in row else computed.get((row["n"], row["seed"]))
        )
        # Blocks that are computed again may differ in their last bit.
        if right is None or row.get("failed_blocks") or row["kind"].startswith("recompute"):
            continue
        if not row["digest"]:
            continue
        looked_at += 1
        if row["digest"] not in right:
            bad.append(f"{row['cell']} {row['kind']} {row['n']}")
    return none_of("KV caches with other bytes than computed", bad, looked_at)


def whole_loads(records: Sequence[Record]) -> Verdict:
    """Returns whether vLLM counted all blocks of loaded prompts as external hits."""
    bad, looked_at = [], 0
    for row in rows_of(records):
        if row["kind"] in ("load", "load from its disk", "after the kill"):
            looked_at += 1
            if row["external"] < row["most_hits"]:
                text = f"{row['cell']} {row['n']}: {row['external']:.0f} of {row['most_hits']}"
                bad.append(text)
    return none_of("prompts that were loaded in part", bad, looked_at)


def left_behind(records: Sequence[Record]) -> Verdict:
    """Returns whether our cells left files in `/dev/shm`."""
    ours = [one for one in records if one["cell"] not in OF_VLLM]
    bad = [f"{one['cell']} {name}" for one in ours for name in one.get("left_in_shared_memory", ())]
    return none_of("files that our cells left in /dev/shm", bad, len(ours))


def leases(records: Sequence[Record]) -> Verdict:
    """Returns whether servers kept anything for clients that have ended."""
    found = [one for one in records if "server_afterwards" in one]
    bad = [
        f"{one['cell']} {name}: {count}"
        for one in found
        for name, count in one["server_afterwards"].items()
        if count
    ]
    return none_of("leases and clients that servers kept", bad, len(found))


def broken_cells(records: Sequence[Record]) -> Verdict:
    """Returns whether all cells ran."""
    bad = [f"{one['part']} {one['cell']}" for one in records if not one["ok"]]
    return none_of("cells that failed", bad, len(records))


def reached_faults(records: Sequence[Record]) -> Verdict:
    """Returns whether the planted faults took effect, so that answers say something."""
    bad, looked_at = [], 0
    for row in rows_of(records, "decode"):
        is_damaged, in_step = row["kind"].startswith("damaged"), row["kind"].endswith("in step")
        looked_at += is_damaged or in_step
        if (is_damaged and not row["failed_blocks"]) or (in_step and not row["step_loads"]):
            bad.append(f"{row['cell']} {row['kind']}")
    for record in records:
        if record["cell"] == "killed" and record["ok"]:
            looked_at += 1
            if record["exit_code"] != -9:
                bad.append("killed: it ended before it loaded")
    return none_of("faults that had no effect", bad, looked_at)


def percentile(values: Sequence[float], part: float) -> float:
    """Returns a percentile of values, the next higher one; not a number without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else math.nan


def ratio(value: float | None, other: float | None) -> float | None:
    """Returns a quotient; None if one of the numbers was not measured."""
    return value / other if value is not None and other else None


def of_engines(records: Sequence[Record]) -> list[Verdict]:
    """Returns the verdicts on times to the first token, at the longest prompt."""
    n = longest(records)
    pool = first_token_s(records, "direct-pool", "load", n)
    served = first_token_s(records, "direct-serve", "load", n)
    in_gpu = first_token_s(records, "plain", "hit in GPU", n)
    cpu = first_token_s(records, "cpu-tier", "load", n)
    sizes = {row["n"]: row["cached_bytes"] for row in rows_of(records, "engines")}
    best = in_gpu + sizes[n] / BUS_BYTES_PER_S if in_gpu else None
    at = f"{n} tokens" if n else "longest prompt"
    return [
        at_most(f"pool against vLLM's CPU tier, {at}", ratio(pool, cpu), 0.75),
        at_most(f"pool against hit in GPU + bytes / 55 GB/s, {at}", ratio(pool, best), 1.3),
        at_most(f"through serve against pool, {at}", ratio(served, pool), 1.15),
    ]


def of_auto(records: Sequence[Record]) -> list[Verdict]:
    """Returns whether an engine that decides itself was never slower than computing."""
    lengths = sorted({row["n"] for row in rows_of(records, "engines")})
    verdicts = []
    for cell in ("auto-pool", "auto-disk"):
        ratios = []
        for n in lengths:
            auto = first_token_s(records, cell, "auto", n)
            computed = first_token_s(records, "plain", "recompute", n)
            if auto is not None and computed:
                ratios.append((auto - GUARD_S) / computed)
        claim = f"{cell} against recompute + {GUARD_S * 1e3:.0f} ms, worst length"
        verdicts.append(at_most(claim, max(ratios, default=None), 1.05))
    return verdicts


def of_ends(records: Sequence[Record]) -> list[Verdict]:
    """Returns whether requests have jumped, and what that gains where the prompt is on the disk."""
    met = [row for row in rows_of(records, "ends") if "jumped_tokens" in row]
    stayed = [f"{row['cell']} {row['kind']}" for row in met if not row["jumped_tokens"]]
    rows = list(rows_of(records, "ends", "ends-disk"))
    verdicts = [none_of("requests that should have jumped and did not", stayed, len(met))]
    worst, longest_ratio = [], None
    for n in sorted({row["n"] for row in rows}):
        both, computed = (
            median([row["ttft_s"] for row in rows if row["n"] == n and row["kind"] == kind])
            for kind in ("both ends", "recompute")
        )
        worst.append((both - GUARD_S) / computed)
        longest_ratio = both / computed
    claim = f"both ends from the disk against recompute + {GUARD_S * 1e3:.0f} ms, worst length"
    verdicts.append(at_most(claim, max(worst, default=None), 1.05))
    verdicts.append(at_most("the same, longest prompt", longest_ratio, 0.65))
    return verdicts


def of_decoding(records: Sequence[Record]) -> list[Verdict]:
    """Returns the verdict on seconds between tokens while other requests load."""
    for record in records:
        if record["cell"] == "latency-direct" and record["ok"]:
            loading, in_gpu = record["loading"]["with_s"], record["in_gpu"]["with_s"]
            value = ratio(percentile(loading, 0.99), percentile(in_gpu, 0.99))
            return [at_most("p99 between tokens, others load against hit in GPU", value, 1.1)]
    return [at_most("p99 between tokens, others load against hit in GPU", None, 1.1)]


def all_of(records: Sequence[Record]) -> list[Verdict]:
    """Returns all verdicts."""
    facts = [one for one in records if "wrong_pages" in one]
    wrong = [
        f"{one['cell']} {way}: {count}"
        for one in facts
        for way, count in one["wrong_pages"].items()
        if count
    ]
    pools = [one for one in records if "registration" in one]
    refused = [
        f"{one['cell']}: {one['registration']['refusals']}"
        for one in pools
        if one["registration"]["registered_bytes"] < one["registration"]["pool_bytes"]
    ]
    return [
        *of_engines(records),
        *of_auto(records),
        *of_ends(records),
        *of_decoding(records),
        answers(records),
        cached_bytes(records),
        whole_loads(records),
        reached_faults(records),
        none_of("pages with wrong bytes", wrong, len(facts)),
        none_of("pools that the GPU did not register", refused, len(pools)),
        leases(records),
        left_behind(records),
        broken_cells(records),
    ]
