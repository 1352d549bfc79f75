"""The highest request rate at which first tokens come within a second, in virtual time.

Requests of a recorded trace come at random (Poisson). A simulated H200 with Llama-3-8B serves them
under four policies, from sources of 25, 7 and 1.9 GB/s and from a far directory:

* `recompute`: nothing is stored.
* `cpu_tier`: the memory of the host, a least-recently-used cache behind 25 GB/s. It has space for
  a part of what the trace has, as in the figures of Managed Lustre: 1 TiB of 3.4.
* `load_all`: everything that hits is loaded before its request computes, as LMCache does.
* `ours`: what pays is loaded, by layer or ahead, as our cost model decides.

A rate is *held* if the mean of the first tokens is within the bound; `--share 0.9` asks that of so
many of the requests instead. Rates are found by halving an interval; each trial has the same
requests at the same multiples of the mean pause. They are the last ones of the trace: those before
fill the stores.

With `--real` requests are served in real time too, with loads and saves of a store on a disk of
this machine and timed waits in place of compute.

The far directory is compared with host memory alone as Managed Lustre was: contexts of 50,000
tokens, of which three quarters hit, and memory for 1 TiB of 3.4 TiB.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dalsegno.paths import local_path
from dalsegno_bench.disk.merge import percentile
from dalsegno_bench.first_token import slo_real
from dalsegno_bench.first_token.engine import Engine, Request
from dalsegno_bench.first_token.layers import BYTES_PER_TOKEN, H200
from dalsegno_bench.first_token.learning import Noted, learned
from dalsegno_bench.first_token.pipeline import Source
from dalsegno_bench.first_token.policies import (
    BLOCK_TOKENS,
    Ours,
    Policy,
    load_ahead,
    recompute,
    whole,
)
from dalsegno_bench.first_token.slo_real import Served
from dalsegno_bench.workload import Lru, read_trace

__all__ = ["SUMMARY", "Prompt", "held", "main", "prompts_of"]

SUMMARY = "the highest request rate with first tokens within a second, in virtual time"

BOUND_S = 1.0
TRACES = ("loogle_shuffled_blk64.jsonl.xz", "leval_shuffled_blk64.jsonl.xz")
DATA = Path("../shared/data")
# Behind the bus of the host; and what the store reads.
MEMORY = Source("host memory", 25e9, 5e-5, "dram")
SOURCES = (
    Source("25 GB/s", 25e9, 1e-4, "log"),
    Source("7 GB/s", 7e9, 2e-4, "log"),
    Source("1.9 GB/s", 1.9e9, 1e-3, "log"),
    Source("far directory", 8e9, 5e-3, "far"),
)
# 110 GB of an H200.
BLOCKS = 840_000 // BLOCK_TOKENS
# As `max_step_load_s` of vLLM's direct path.
MOST_WAIT_S = 0.05
# Tokens of an answer: first tokens are asked for, and other requests decode beside them.
OUTPUT = 16
HALVINGS = 9
# Requests per second between which the highest rate is.
RATES = (0.02, 40.0)
# The workload of the Managed Lustre figures, and these: throughput and first tokens.
LUSTRE = {"context": 50_000, "hit": 0.75, "contexts": 40}
MEMORY_PART = 1 / 3.4
LUSTRE_FIGURES = {"throughput": 1.75, "first_token": 0.56}


@dataclass(frozen=True)
class Prompt:
    """A request of a trace, in tokens.

    Attributes:
        tokens: Of the prompt.
        stored: Leading ones that a store without a limit has.
        in_memory: Leading ones that the memory of the host has.
    """

    tokens: int
    stored: int
    in_memory: int


def prompts_of(path: Path, memory_bytes: float | None, most: int) -> list[Prompt]:
    """Reads the last prompts of a trace; those before have filled the stores.

    Args:
        path: In Mooncake's format; may be compressed.
        memory_bytes: Of the host; None for `MEMORY_PART` of what the trace has.
        most: How many prompts.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not of this format.
    """
    trace = read_trace(path)
    block_bytes = trace.block_tokens * BYTES_PER_TOKEN
    if memory_bytes is None:
        memory_bytes = MEMORY_PART * trace.blocks * block_bytes
    memory, store = Lru[int](int(memory_bytes // block_bytes)), Lru[int](trace.blocks)

    def tokens(lru: Lru[int], number: int, chain: array[int]) -> int:
        hit = trace.hit_tokens(number, lru.use(chain))
        return whole(min(hit, trace.input_tokens[number] - 1))

    return [
        Prompt(trace.input_tokens[at], tokens(store, at, chain), tokens(memory, at, chain))
        for at, chain in enumerate(trace.requests)
    ][-most:]


def lustre_prompts(count: int, seed: int) -> list[Prompt]:
    """Returns the prompts of the Managed Lustre figures: each has a context of many.

    Args:
        count: How many.
        seed: Another seed chooses other contexts.
    """
    noise = random.Random(seed)  # noqa: S311 - not a secret
    contexts, context = int(LUSTRE["contexts"]), int(LUSTRE["context"])
    memory = Lru[int](int(contexts * MEMORY_PART))
    hit = whole(context * LUSTRE["hit"])
    chosen = [noise.randrange(contexts) for _ in range(count + contexts)]
    found = [memory.use([one]) for one in chosen]
    # The first ones fill the memory.
    return [Prompt(context, hit, hit if one else 0) for one in found[contexts:]]


Serve = Callable[[Sequence[Prompt], float], list[float]]


def server(source: Source, policy: str, seed: int) -> Serve:
    """Returns what serves prompts at a rate; it returns the seconds until their first tokens.

    Args:
        source: Where the store is.
        policy: One of the module's.
        seed: Of the pauses between requests, and of what our model has learned.
    """

    def serve(prompts: Sequence[Prompt], rate: float) -> list[float]:
        noise, now, requests = random.Random(seed), 0.0, []  # noqa: S311 - not a secret
        where = MEMORY if policy == "cpu_tier" else source
        for one in prompts:
            now += noise.expovariate(1.0) / rate
            hit = one.in_memory if policy == "cpu_tier" else one.stored
            requests.append(Request(now, one.tokens, OUTPUT, hit, where.name))
        model = learned(H200, where, seed)
        decide: dict[str, Policy] = {
            "recompute": recompute,
            "cpu_tier": load_ahead,
            "load_all": load_ahead,
            "ours": Ours(model, H200.layers, MOST_WAIT_S),
        }
        noted = Noted(model) if policy == "ours" else None
        Engine(H200, [where], decide[policy], BLOCKS, noted).run(requests)
        return [one.first_token_s - one.arrival_s for one in requests]

    return serve


POLICIES = ("recompute", "cpu_tier", "load_all", "ours")


def figure(waits: Sequence[float], share: float | None) -> float:
    """Returns the mean first token, or the one that a share of the requests does not exceed."""
    if share is None:
        return statistics.fmean(waits)
    return percentile(waits, share)


def held(serve: Serve, prompts: Sequence[Prompt], share: float | None) -> float:
    """Returns the highest rate at which first tokens are within the bound; 0 if none is.

    Args:
        serve: What serves.
        prompts: What is asked.
        share: As of `figure`.
    """
    low, high = RATES
    if figure(serve(prompts, low), share) > BOUND_S:
        return 0.0
    if figure(serve(prompts, high), share) <= BOUND_S:
        return high
    for _ in range(HALVINGS):
        middle = (low * high) ** 0.5
        if figure(serve(prompts, middle), share) <= BOUND_S:
            low = middle
        else:
            high = middle
    return low


def rates_of(
    prompts: Sequence[Prompt], options: argparse.Namespace
) -> dict[str, dict[str, dict[str, float]]]:
    """Returns by source the rate of each policy, and ours over it."""
    found = {}
    for source in SOURCES:
        rates = {
            policy: held(server(source, policy, options.seed), prompts, options.share)
            for policy in POLICIES
        }
        ours = rates["ours"]
        ratios = {name: ours / rate for name, rate in rates.items() if rate and name != "ours"}
        found[source.name] = {
            "per_s": {name: round(rate, 3) for name, rate in rates.items()},
            "ours_over": {name: round(ratio, 2) for name, ratio in ratios.items()},
        }
    return found


def served_really(prompts: Sequence[Prompt], options: argparse.Namespace) -> dict[str, Any]:
    """Serves prompts with real I/O under each policy that needs no memory of the host."""

    def rate_of(serve: Callable[[float], list[float]]) -> float:
        # The mean, whatever `--share` says of virtual time.
        return held(lambda _, rate: serve(rate), prompts, None)

    asked = [(one.tokens, one.stored) for one in prompts]
    served = Served(asked, OUTPUT, BLOCKS, BOUND_S, options.seed, rate_of)
    return slo_real.run(options.dir, served)


def lustre(options: argparse.Namespace) -> dict[str, Any]:
    """Compares a far directory with host memory alone, beside the figures of Managed Lustre.

    Throughput is the rate that each holds with a mean first token of ten seconds; first tokens are
    compared at three quarters of the rate that memory alone holds.
    """
    prompts, far = lustre_prompts(options.requests, options.seed), SOURCES[-1]
    serve = {policy: server(far, policy, options.seed) for policy in ("cpu_tier", "ours")}

    def most(policy: str) -> float:
        low, high = RATES
        for _ in range(HALVINGS):
            middle = (low * high) ** 0.5
            is_held = statistics.fmean(serve[policy](prompts, middle)) <= 10 * BOUND_S
            low, high = (middle, high) if is_held else (low, middle)
        return low

    rates = {policy: most(policy) for policy in serve}
    at = 0.75 * rates["cpu_tier"]
    firsts = {policy: statistics.fmean(one(prompts, at)) for policy, one in serve.items()}
    return {
        "throughput": round(rates["ours"] / rates["cpu_tier"], 2),
        "first_token": round(firsts["ours"] / firsts["cpu_tier"], 2),
        "first_token_s": {name: round(one, 3) for name, one in firsts.items()},
        "managed_lustre": LUSTRE_FIGURES,
    }


def show(traces: Mapping[str, Any], real: Mapping[str, Any], far: Mapping[str, Any]) -> None:
    """Prints the tables."""
    for name, sources in traces.items():
        print(f"{name}: requests per second with first tokens within {BOUND_S:g} s")
        print(f"  {'source':14}" + "".join(f"{policy:>12}" for policy in POLICIES))
        for source, one in sources.items():
            rates = "".join(f"{one['per_s'][policy]:12.2f}" for policy in POLICIES)
            print(f"  {source:14}{rates}   ours/load_all {one['ours_over'].get('load_all', 0):.2f}")
    for name, one in real.items():
        print(f"{name}: with real I/O, a disk of {one['gb_per_s']:.2f} GB/s")
        for policy in slo_real.POLICIES:
            per_s, simulated = (one[policy][key] for key in ("per_s", "simulated_per_s"))
            print(f"  {policy:14}{per_s:12.2f}   in virtual time {simulated:.2f}")
    print(
        f"far directory against host memory alone: throughput x{far['throughput']:.2f}"
        f" (Managed Lustre x{LUSTRE_FIGURES['throughput']:.2f}),"
        f" first token x{far['first_token']:.2f} (x{LUSTRE_FIGURES['first_token']:.2f})"
    )


def main(argv: Sequence[str]) -> int:
    """Runs the bench; the last line on standard output is its result as JSON."""
    parser = argparse.ArgumentParser(
        prog="dalsegno bench slo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("traces", nargs="*", type=local_path, help=f"traces (those of {DATA}, if they are there)")
    add("--requests", type=int, default=200, help="of each trace (%(default)s)")
    add("--memory-gb", type=float, help="of the host (a part of what the trace has)")
    add("--share", type=float, help="of the requests whose first token is in time (the mean)")
    add("--seed", type=int, default=1, help="of pauses between requests (%(default)s)")
    add("--real", type=int, default=0, metavar="N", help="also serve N requests with real I/O")
    add("--dir", type=local_path, default=Path("/var/tmp"), help="where to write")  # noqa: S108
    options = parser.parse_args(argv)
    folder = Path(__file__).resolve().parents[3] / DATA
    paths = options.traces or [folder / name for name in TRACES]
    result: dict[str, Any] = {"bench": "slo", "load": [round(os.getloadavg()[0], 2)]}
    traces, real = {}, {}
    for path in paths:
        if not options.traces and not path.is_file():
            print(f"skipped: {path.name} is missing; name a trace in Mooncake's format")
            continue
        try:
            memory = options.memory_gb * 1e9 if options.memory_gb is not None else None
            prompts = prompts_of(path, memory, options.requests)
        except (OSError, ValueError) as error:
            print(f"dalsegno: {error}", file=sys.stderr)
            return 2
        name = path.name.split(".")[0]
        traces[name] = rates_of(prompts, options)
        if options.real:
            real[name] = served_really(prompts[-options.real :], options)
    far = lustre(options)
    show(traces, real, far)
    result |= {"traces": traces, "real": real, "far_directory": far, "share": options.share}
    result["load"].append(round(os.getloadavg()[0], 2))
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
