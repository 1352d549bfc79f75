"""When loading helps: the first token with the policies `never`, `always` and `auto`.

Real vLLM on the CPU answers prompts whose beginning a store has, on the direct path. The model has
random weights, and one thread computes. All blocks are on the disk: the stores were filled before
the engines started, and each document is asked about once. The disk is throttled for the engines,
with cgroups. Writes are not throttled.

The model has so many layers that computing 3,072 tokens takes about 3 s here (1.5 s with
`--quick`): the throttle lets the bytes of a tenth of a second through at once, so a load that takes
no longer is not throttled.

The crossover is the rate at which loading 3,072 tokens takes as long as computing them. A cell is a
rate, a prompt length and a hit rate. In each round of a cell all engines answer the same prompt, in
turns. `incomplete` counts rounds in which a store had lost blocks. `never` answers each prompt
twice: `aa_p90` is the 90th percentile of how much both differ.
`auto_vs_min` is the first token with `auto` over that with the better of the other policies, from
medians. The rates fall from cell to cell, because `auto` learns only from its own loads.

`after_step` counts the requests that come 1.3 times later than with the better policy after the
rate has changed from 4 to 1/4 of the crossover, and back: the larger number. `beside` is the first
token of a request without hits while another one loads, over the same while that one computes.
`meeting` is by which part of the predicted blocks both ends met elsewhere, the median.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from dalsegno_bench.vllm import first_token_engines as engines_of
from dalsegno_bench.vllm import first_token_figures as figures
from dalsegno_bench.vllm import throttle as throttles
from dalsegno_bench.vllm.first_token_engines import Engine, Place
from dalsegno_bench.vllm.first_token_figures import Round
from dalsegno_bench.vllm.first_token_model import Model, layers_for
from dalsegno_bench.vllm.first_token_plan import (
    BESIDE_RATE,
    FULL,
    LONG,
    MIDDLE,
    QUICK,
    SHORT,
    Cell,
    Plan,
)
from dalsegno_bench.vllm.throttle import Throttle

__all__ = ["ENVIRONMENT", "SUMMARY", "main"]

SUMMARY = "time to first token with load_policy never, always and auto, on a throttled disk"
ENVIRONMENT = "vllm"

POLICIES = ("never", "always", "auto")
FAST, SLOW = 4.0, 0.25
# A store has so many bytes of disk for each byte that is filled in.
SPARE = 1.5


class Bench:
    """One run.

    Attributes:
        rounds: The answers, by cell.
        line: The figures so far.
    """

    def __init__(self, place: Place, plan: Plan, raw: Path | None) -> None:
        """Starts without figures.

        Args:
            place: Where the engines run.
            plan: What they are asked.
            raw: File for all answers, one line of JSON each.
        """
        self._place, self._plan, self._raw = place, plan, raw
        self._started = time.monotonic()
        self._order = random.Random(5)  # noqa: S311 - not a secret
        self._crossover = 0.0
        self.rounds: dict[Cell, list[Round]] = {}
        self.line: dict[str, Any] = {"incomplete": 0}

    def _say(self, what: str) -> None:
        print(f"{time.monotonic() - self._started:6.0f} s  {what}", file=sys.stderr, flush=True)

    def _write(self, **what: Any) -> None:
        """Writes a line to the file of all answers."""
        if self._raw is not None:
            with self._raw.open("a", encoding="utf-8") as file:
                print(json.dumps(what), file=file)

    def _set_rate(self, rate: float) -> None:
        """Sets the rate of the disk, in units of the crossover; 0 for no limit."""
        self._place.throttle.limit(int(rate * self._crossover))

    def run(self) -> None:
        """Measures everything."""
        prompts, plan = self._plan.stored, self._plan
        for number in engines_of.fill(self._place, prompts, POLICIES):
            if number % 20 == 0 or number == len(prompts):
                self._say(f"stored {number} of {len(prompts)} documents")
        with engines_of.running(self._place, POLICIES) as engines:
            self._say("the engines run")
            self._measure_crossover(engines)
            for number, rate in enumerate(plan.form.rates, 1):
                self._measure_rate(engines, rate)
                self._say(f"{rate:g}x measured, {number} of {len(plan.form.rates)} rates")
            self._measure_steps(engines["auto"])

    def _measure_crossover(self, engines: Mapping[str, Engine]) -> None:
        """Lets all engines learn how they compute, and finds the rate of the crossover."""
        for prompt in self._plan.computed:
            for engine in engines.values():
                engine.ask(prompt)
        took = [figures.seconds(engines["never"].ask(prompt)) for prompt in self._plan.timed]
        compute_s = statistics.median(took)
        self._crossover = MIDDLE * self._place.model.bytes_per_token / compute_s
        self.line["compute_3k_s"] = round(compute_s, 3)
        self.line["crossover_mib_per_s"] = round(self._crossover / 2**20, 2)
        self._say(f"{MIDDLE} tokens: {compute_s:.2f} s, {self._crossover / 2**20:.1f} MiB/s")

    def _measure_rate(self, engines: Mapping[str, Engine], rate: float) -> None:
        """Measures all cells at a rate."""
        self._set_rate(rate)
        for document in self._plan.warm_ups[rate]:
            self._write(warm_up=rate, auto=engines["auto"].ask(document.prompt))
        cells = self._plan.form.at(rate)
        for number in range(self._plan.form.rounds):
            for cell in self._order.sample(cells, len(cells)):
                document = self._plan.rounds[cell][number]
                asked = self._ask_all(engines, document.prompt)
                self.rounds.setdefault(cell, []).append(asked)
                self._write(cell=cell.name, **dataclasses.asdict(asked))
                found = sum(size for _, size, *_ in asked.always["loads"][:1])
                is_whole = found == document.blocks * self._place.model.block_bytes
                self.line["incomplete"] += not is_whole
            self._say(f"{rate:g}x: round {number + 1} of {self._plan.form.rounds}")
        if rate == BESIDE_RATE:
            self._measure_beside(engines)
        self.line.setdefault("models", {})[f"{rate:g}"] = engines["auto"].explain()
        for cell in cells:
            self.line.setdefault("cells", []).append(figures.cell(cell, self.rounds[cell]))
            self._say(json.dumps(self.line["cells"][-1]))

    def _ask_all(self, engines: Mapping[str, Engine], prompt: list[int]) -> Round:
        """Asks all engines, in another order each time, and `never` twice."""
        names = [*POLICIES, "never"]
        self._order.shuffle(names)
        answers: dict[str, list[dict[str, Any]]] = {name: [] for name in POLICIES}
        for name in names:
            answers[name].append(engines[name].ask(prompt))
        first, second = answers["never"]
        return Round((first, second), answers["always"][0], answers["auto"][0])

    def _measure_beside(self, engines: Mapping[str, Engine]) -> None:
        """Asks for a document that loads and a prompt without hits, together."""
        ratios, loaded = [], []
        for number, (document, other) in enumerate(self._plan.pairs):
            spent = {}
            for name in ("never", "auto")[:: 1 if number % 2 else -1]:
                spent[name] = engines[name].ask(document.prompt, other)
            self._write(beside=spent)
            ratios.append(spent["auto"]["first_token_s"][1] / spent["never"]["first_token_s"][1])
            loaded.append(spent["auto"]["loaded_bytes"])
        self.line["beside"] = round(statistics.median(ratios), 3)
        self.line["beside_ratios"] = [round(one, 3) for one in ratios]
        self.line["beside_loaded_mib"] = [round(one / 2**20, 1) for one in loaded]

    def _measure_steps(self, auto: Engine) -> None:
        """Measures `auto` after changes of the rate."""
        answers = {}
        for name, rate in (("warm_up", FAST), ("slower", SLOW), ("faster", FAST)):
            self._set_rate(rate)
            answers[name] = [auto.ask(one.prompt) for one in self._plan.steps[name]]
            self._write(step=name, answers=answers[name], model=auto.explain())
            self._say(f"rate {name}: {len(answers[name])} requests")
        known = {(one["rate"], one["tokens"], one["hits"]): one for one in self.line["cells"]}
        steps = {
            name: figures.after_step(answers[name], known[rate, SHORT, 1.0])
            for name, rate in (("warm_up", FAST), ("slower", SLOW), ("faster", FAST))
        }
        self.line["steps"] = steps
        self.line["after_step"] = max(steps[name]["worse"] for name in ("slower", "faster"))

    def result(self) -> dict[str, Any]:
        """Returns all figures."""
        rounds = [one for group in self.rounds.values() for one in group]
        aa_p90 = round(figures.noise(rounds), 3)
        line = {**self.line, "aa_p90": aa_p90, **figures.overall(self.line["cells"], aa_p90)}
        line["meeting"] = round(figures.meeting(rounds), 3)
        line["different_answers"] = sum(one.differs for one in rounds)
        line["distinct_answers"] = len({str(one.auto["answers"]) for one in rounds})
        line["prompts"] = len(rounds)
        line["missed"] = figures.missed(line)
        line["took_s"] = round(time.monotonic() - self._started)
        return line


def main(argv: Sequence[str]) -> int:
    """Runs the bench.

    Args:
        argv: See ``--help``.

    Returns:
        The exit code; 2 if the disk cannot be throttled here.
    """
    parser = argparse.ArgumentParser(
        prog="dalsegno bench first-token",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="6 cells instead of 22")
    parser.add_argument("--rounds", type=int, help="rounds of each cell (5; 3 with --quick)")
    parser.add_argument(
        "--max-step-load-s",
        type=float,
        help="seconds that a step may wait (vLLM's connector: 0.05)",
    )
    parser.add_argument("--raw", type=Path, help="file to which all answers are added")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"))  # noqa: S108
    options = parser.parse_args(argv)
    if why := throttles.missing(options.dir):
        print(f"The disk cannot be throttled: {why}.", file=sys.stderr)
        return 2
    form = QUICK if options.quick else FULL
    plan = Plan(dataclasses.replace(form, rounds=options.rounds or form.rounds))
    # Everything is removed then, too.
    signal.signal(signal.SIGTERM, _end)
    line: dict[str, Any] = {"quick": options.quick, "load": [round(os.getloadavg()[0], 2)]}
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="dalsegno-first-token-") as name:
        folder = Path(name)
        with Throttle(folder) as throttle:
            is_limited, line["throttle_test_s"] = throttles.works(throttle, folder)
            line["throttle_works"] = is_limited
            if not is_limited:
                print(json.dumps(line))
                return 2
            place = _place(folder, throttle, plan, options.max_step_load_s)
            line["layers"] = place.model.layers
            if why := _lack_of_space(place):
                print(why, file=sys.stderr)
                return 2
            bench = Bench(place, plan, options.raw)
            bench.run()
            line |= bench.result()
    line["load"].append(round(os.getloadavg()[0], 2))
    for key, value in line.items():
        print(f"{key:26} {value}")
    print(json.dumps(line))
    return 0


def _end(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _place(folder: Path, throttle: Throttle, plan: Plan, wait_s: float | None) -> Place:
    """Writes the model, and decides how large the stores are.

    Args:
        folder: Where everything is.
        throttle: The group of the engines.
        plan: What is asked.
        wait_s: Seconds that a step may wait for a load; None for the default.
    """
    model = Model(folder / "model", layers_for(MIDDLE, plan.form.compute_s))
    model.write_weights()
    capacity = max(1 << 30, int(SPARE * plan.tokens * model.bytes_per_token))
    # Steps may wait for the longest documents: a quarter of the pool.
    pool = int(4.1 * LONG * model.bytes_per_token)
    settings = {} if wait_s is None else {"max_step_load_s": wait_s}
    return Place(folder, model, throttle, capacity, pool, settings)


def _lack_of_space(place: Place) -> str:
    """Returns that the disk has too little space; empty if it has enough."""
    needed, free = len(POLICIES) * place.capacity, shutil.disk_usage(place.folder).free
    if needed < free:
        return ""
    return f"{place.folder} has {free >> 20} MiB, and {needed >> 20} MiB are needed."
