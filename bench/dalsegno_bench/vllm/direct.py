"""The direct path against the tiered path: time to the first token, and what copying costs.

Real vLLM on the CPU computes the last tokens of documents whose blocks a store has. The model has
random weights, small layers and a large KV cache, so loading takes most of the time. `pool`: the
blocks are in the pool of the store, but neither in vLLM's KV cache nor in its memory tier. `disk`:
they are on the disk only: each document is asked about once, and others were stored behind it. Both
paths take turns in each round. A ratio is direct / tiered of one round, and a figure is the median.

`overlap` is the share of the time of a load from disk during which its own step computes instead of
waiting for it. `overlap_ttft` is the share that the first token does not wait for: it is smaller if
the load takes cores or memory bandwidth from the compute. For that, the same prompt is asked three
times in a round: when vLLM has its beginning, when its request waits for the load, and when the
step does. One thread computes, so that a core is left for the load.

`copies_per_byte`, `load_us_per_piece` and `plan_us_per_piece` are measured without an engine. A
piece is one layer of one block, of 512 bytes. A load plans its copies, wakes the threads that copy,
and waits for them; a program in Rust measures how long it plans.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dalsegno_bench.index import program
from dalsegno_bench.vllm import direct_engines
from dalsegno_bench.vllm.direct_engines import Contender, Model

__all__ = ["ENVIRONMENT", "SUMMARY", "main"]

SUMMARY = "vLLM's direct path against its tiered path: time to first token, copies, overlap, CPU"
ENVIRONMENT = "vllm"

# What is measured is loading, not the decision to load.
LOADS_ALL: dict[str, Any] = {"load_policy": "always", "keep_profile": False}
DIRECT = {"path_to_engine": "direct", **LOADS_ALL}
# Documents that are asked about in turn.
POOL_DOCUMENTS = 2
# Documents behind those of the rounds, which fill the pool.
LAST_DOCUMENTS = 6
TAIL = 16
PIECES = (100, 1_000, 10_000)
PUT_BLOCKS = 500


def documents(count: int, tokens: int) -> list[list[int]]:
    """Returns documents of random tokens."""
    noise = random.Random(3)  # noqa: S311 - not a secret
    return [[noise.randrange(2, Model.VOCABULARY) for _ in range(tokens)] for _ in range(count)]


def compare(
    place: str, folder: Path, model: Model, rounds: int, tokens: int
) -> tuple[dict[str, Any], list[float]]:
    """Measures both paths with blocks in one place.

    Returns:
        The figures, and the ratios of the rounds.
    """
    # From the disk, each is asked about once.
    count = POOL_DOCUMENTS if place == "pool" else rounds + 1 + LAST_DOCUMENTS
    size = tokens * model.bytes_per_token
    held = 4.4 * size if place == "pool" else 4.1 * size
    texts = documents(count, tokens)
    direct = {**DIRECT, "cpu_bytes_to_use": int(held)}
    # Its memory tier holds one document, and that is never the next one.
    tiered: dict[str, Any] = {
        **LOADS_ALL,
        "cpu_bytes_to_use": int(1.3 * size),
        "max_load_bytes": int(1.2 * size),
        "store": {"dram": 0},
    }
    if place == "pool":
        tiered["store"] = {"dram": int(held), "dram_admission": "put"}
    settings = {"direct": direct, "tiered": tiered}
    with direct_engines.running(folder, model, settings) as engines:
        for engine in engines.values():
            for text in texts:
                engine.ask([*text, *text[:TAIL]])
        spent: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
        for number in range(rounds + 1):
            text = texts[number % count]
            for name in list(engines)[:: 1 if number % 2 else -1]:
                # Another end than before, so that only the document is known.
                end = [*text[1:TAIL], number + 2]
                answer = engines[name].ask([*text, *end])
                if number:
                    spent[name].append(answer)
            print(f"{place}: round {number} of {rounds}", file=sys.stderr)
    return _figures(place, spent, size)


def _figures(
    place: str, spent: dict[str, list[dict[str, float]]], size: int
) -> tuple[dict[str, Any], list[float]]:
    pairs = zip(spent["direct"], spent["tiered"], strict=True)
    ratios = [mine["ttft_s"] / theirs["ttft_s"] for mine, theirs in pairs]
    figures: dict[str, Any] = {f"ttft_{place}_vs_tiered": round(statistics.median(ratios), 3)}
    for name, answers in spent.items():
        middle = {key: statistics.median(answer[key] for answer in answers) for key in answers[0]}
        figures[f"{place}_{name}"] = {
            "ttft_ms": round(1e3 * middle["ttft_s"], 1),
            "cpu_s_per_gb": round(middle["cpu_s"] / size * 1e9, 3),
            "loaded_mib": round(middle["loaded_bytes"] / 2**20, 1),
            "step_loads": middle["step_loads"],
        }
    return figures, ratios


def overlap(folder: Path, model: Model, rounds: int, tokens: int) -> dict[str, Any]:
    """Measures how much of a load is hidden behind the compute of its step."""
    size = tokens * model.bytes_per_token
    given: dict[str, Any] = {**DIRECT, "cpu_bytes_to_use": int(4.1 * size)}
    # Long enough for any load.
    settings = {
        "step": {**given, "max_step_load_s": 30},
        "wait": {**given, "max_step_load_s": 1e-6},
    }
    texts = documents(rounds + 6 + LAST_DOCUMENTS, tokens)
    # One thread computes, as if on a device of its own: another core is left for the load.
    with direct_engines.running(folder, model, settings, {"wait"}, threads=1) as engines:
        for engine in engines.values():
            for text in texts:
                engine.ask([*text, *text[:TAIL]])
        tail = _tail_that_takes_longer(engines["wait"], texts[rounds:])
        shares, of_ttft, parts = [], [], []
        for number in range(rounds):
            text = texts[number]
            prompts = [[*text, number + 2, one, *text[: tail - 2]] for one in (2, 3, 4)]
            waits = engines["wait"].ask(prompts[0])["ttft_s"]
            computes = engines["wait"].ask(prompts[1], forget=False)["ttft_s"]
            both = engines["step"].ask(prompts[2])
            assert both["step_loads"] == 1, "the load did not run inside the step"
            shares.append(1 - both["waited_s"] / both["load_s"])
            of_ttft.append((waits - both["ttft_s"]) / (waits - computes))
            parts.append(both["load_s"] / computes)
            print(f"overlap: round {number + 1} of {rounds}", file=sys.stderr)
    return {
        "overlap": round(statistics.median(shares), 3),
        "overlap_ttft": round(statistics.median(of_ttft), 3),
        "load_per_compute": round(statistics.median(parts), 3),
        "overlap_tokens": tail,
    }


def _tail_that_takes_longer(engine: Contender, texts: list[list[int]]) -> int:
    """Returns how many tokens to compute, so that the load takes 0.3 to 0.9 of that time.

    Args:
        engine: One whose requests wait.
        texts: Documents that no round asks about.
    """
    for text, tail in zip(texts, (16, 32, 64, 96, 128, 256), strict=False):
        prompts = [[*text, one, *text[: tail - 1]] for one in (5, 6)]
        load_s = engine.ask(prompts[0])["ttft_s"]
        computes = engine.ask(prompts[1], forget=False)["ttft_s"]
        if load_s - computes < 0.55 * computes:
            return tail
    return 512


def pieces(folder: Path) -> dict[str, Any]:
    """Measures loads from the pool without an engine."""
    import dalsegno

    layers, slice_bytes, most = 8, 512, max(PIECES)
    figures: dict[str, Any] = {"load_us_per_piece": {}}
    dram = 4 * most * (64 << 10)
    with dalsegno.open(
        folder / "pieces", capacity="2GiB", dram=dram, dram_admission="put"
    ) as store:
        namespace = store.namespace({}, layers=layers, slice_bytes=slice_bytes)
        buffers = [bytearray(most * slice_bytes) for _ in range(layers)]
        memory = dalsegno.PagedMemory(
            buffers, pages=most, stride=slice_bytes, parts=[(0, slice_bytes)], pages_per_block=1
        )
        chain = [number.to_bytes(32, "big") for number in range(1, most + 1)]
        block = bytes(layers * slice_bytes)
        for first in range(0, most, PUT_BLOCKS):
            blocks_of_put = chain[: first + PUT_BLOCKS]
            namespace.put_batch(blocks_of_put, [block] * (len(blocks_of_put) - first), first=first)
        for count in PIECES:
            pages, took = list(range(count)), []
            for _ in range(15):
                with namespace.lease(chain[:count]) as lease:
                    assert len(lease) == count, "the pool holds fewer blocks"
                    before = store.stats()["engine_copied_bytes"]
                    blocks = memory.blocks(pages)
                    started = time.perf_counter()
                    load = lease.load(blocks)
                    load.wait()
                    took.append(time.perf_counter() - started)
                    assert load.result() == count
                    copied = store.stats()["engine_copied_bytes"] - before
                    del load, blocks
            figures["load_us_per_piece"][str(count)] = round(
                statistics.median(took) * 1e6 / (count * layers), 4
            )
            figures["copies_per_byte"] = copied / (count * layers * slice_bytes)
        del memory
    return figures


def plan() -> dict[str, Any]:
    """Measures how loads from the pool are planned; None if the program cannot be built here."""
    binary = program.build("dalsegno-bench-plan")
    if binary is None:
        return {"plan_us_per_piece": None}
    counts = ",".join(map(str, PIECES))
    said = subprocess.run([str(binary), f"--blocks={counts}"], check=True, capture_output=True)
    figures = json.loads(said.stdout)
    return {"plan_us_per_piece": {count: round(one, 4) for count, one in figures.items()}}


def main(argv: Sequence[str]) -> int:
    """Runs the bench.

    Args:
        argv: See ``--help``.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(
        prog="dalsegno bench direct",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=12, help="rounds (%(default)s)")
    parser.add_argument(
        "--tokens", type=int, default=1024, help="tokens of a document (%(default)s)"
    )
    parser.add_argument(
        "--only", choices=("pool", "disk", "overlap", "pieces"), help="one part of the bench"
    )
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"))  # noqa: S108
    options = parser.parse_args(argv)
    line: dict[str, Any] = {"rounds": options.rounds, "load": [round(os.getloadavg()[0], 2)]}
    with tempfile.TemporaryDirectory(dir=options.dir) as name:
        folder = Path(name)
        model = Model(folder / "model")
        parts = (options.only,) if options.only else ("pieces", "pool", "disk", "overlap")
        for part in parts:
            if part == "pieces":
                line |= {**plan(), **pieces(folder)}
            elif part == "overlap":
                line |= overlap(folder / part, model, options.rounds, options.tokens)
            else:
                figures, ratios = compare(
                    part, folder / part, model, options.rounds, options.tokens
                )
                line |= figures
                line[f"{part}_ratios"] = [round(one, 3) for one in ratios]
    line["load"].append(round(os.getloadavg()[0], 2))
    for key, value in line.items():
        print(f"{key:26} {value}")
    print(json.dumps(line))
    return 0
