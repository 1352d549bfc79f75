"""The tables and the result of ``bench dynamic``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dalsegno_bench.dynamic.turns import Scale, Turn, figures

# Heading, width, and how a row's figure reads.
_COLUMNS: tuple[tuple[str, int, Callable[[dict[str, Any]], str]], ...] = (
    ("ideal", 7, lambda row: f"{row['ideal_hit_rate']:.1%}"),
    ("hit", 7, lambda row: f"{row['hit_rate']:.1%}"),
    ("TTFT ms", 9, lambda row: f"{row['ttft_ms']['mean']:.0f}"),
    ("p50", 6, lambda row: f"{row['ttft_ms']['p50']:.0f}"),
    ("p99", 6, lambda row: f"{row['ttft_ms']['p99']:.0f}"),
    ("full", 7, lambda row: f"{row['full_ms']['mean']:.0f}"),
    ("prefill", 9, lambda row: f"{row['prefill_ms']['mean']:.0f}"),
    ("load s", 8, lambda row: f"{row['load_s']:.2f}"),
    ("save s", 8, lambda row: f"{row['save_s']:.2f}"),
    ("user s", 8, lambda row: f"{row['user_s']:.2f}"),
    ("sys s", 7, lambda row: f"{row['system_s']:.2f}"),
    ("s/GB", 7, lambda row: _number(row["cpu_s_per_gb"], 3)),
    ("files", 8, lambda row: f"{row['files']}"),
    ("inodes", 8, lambda row: f"{row['inodes']}"),
    ("names", 7, lambda row: _number(row["names_mib"], 0)),
    ("slab", 6, lambda row: f"{row['slab_mib']:.0f}"),
    ("RSS", 6, lambda row: f"{row['rss_mib']:.0f}"),
    ("failed", 8, lambda row: f"{row['failed_blocks']}"),
)

_LEGEND = """\
hit, ideal: parts of the stage's tokens. TTFT: measured load + modelled prefill of the rest; full:
the same with the load as many times longer as blocks are smaller; prefill: the modelled part alone.
user s, sys s: CPU seconds of the backend's process, s/GB: both per GB loaded and saved. names: MiB
of the kernel for inodes and names, slab: for all its caches; they and inodes as grown in the
backend's turns. failed: blocks that could not be written."""


def result_of(turns: Sequence[Turn], scale: Scale) -> dict[str, Any]:
    """Works out the result of one workload.

    Args:
        turns: All turns of all backends.
        scale: What they mean.

    Returns:
        For each backend its figures over all stages but the warm-up, and per stage under
        ``stages``, the warm-up first.
    """
    systems = {}
    for system in dict.fromkeys(turn.system for turn in turns):
        own = [turn for turn in turns if turn.system == system]
        systems[system] = figures([turn for turn in own if turn.stage], scale) | {
            "stages": [
                {"stage": turn.stage, "expected": turn.expected, **figures([turn], scale)}
                for turn in own
            ]
        }
    return {
        "prompt_tokens": scale.plan.prompt_tokens,
        "block_tokens": scale.plan.block_tokens,
        "block_bytes": scale.block_bytes,
        "shrunk": round(scale.shrunk, 3),
        "prefill": f"{scale.prefill.model}/{scale.prefill.gpu}",
        "requests": scale.plan.requests,
        "warmup_prompts": scale.plan.warmup_prompts,
        "reuse": scale.plan.reuse,
        "seed": scale.plan.seed,
        "systems": systems,
    }


def tables(title: str, turns: Sequence[Turn], scale: Scale) -> None:
    """Prints what each backend did in each stage, and then in all of them.

    Args:
        title: What was run, and what was shrunk.
        turns: All turns of all backends.
        scale: What they mean.
    """
    systems = result_of(turns, scale)["systems"]
    print(f"\n{title}")
    print(_line("stage", "", [(heading, width) for heading, width, _ in _COLUMNS]))
    for stage in range(len(scale.plan.expected) + 1):
        for system, found in systems.items():
            print(_row(f"{stage}" if stage else "warm-up", system, found["stages"][stage]))
    for system, found in systems.items():
        print(_row("1 to 10", system, found))
    print(_LEGEND)


def broke(turns: Sequence[Turn], scale: Scale, system: str) -> dict[str, Any]:
    """Says in which stage a backend first failed to write, and what that did to its hit rate.

    Args:
        turns: All turns of all backends.
        scale: What they mean.
        system: Which backend.

    Returns:
        ``stage`` from 1, ``None`` if it never failed; the parts of the ideal hits that it had in
        the stages ``before`` and ``after`` that one, ``None`` without such stages; ``text``: the
        same as a sentence.
    """
    own = [turn for turn in turns if turn.system == system]
    stage = next((turn.stage for turn in own if turn.served.failed_blocks), None)
    before = _part([turn for turn in own if turn.stage and (stage is None or turn.stage < stage)])
    after = _part([turn for turn in own if stage is not None and turn.stage > stage])
    last = own[-1]
    if stage is None:
        text = f"{system}: wrote everything; {_percent(before)} of the ideal hits"
    else:
        text = (
            f"{system}: could not write all from stage {stage or 'warm-up'} on; {_percent(before)}"
            f" of the ideal hits before, {_percent(after)} after"
        )
    text += (
        f"; at the end {last.files} files, {last.served.disk_bytes >> 20} MiB, hit rate"
        f" {figures([last], scale)['hit_rate']:.1%} where {last.expected:.1%} was expected"
    )
    return {"stage": stage, "before": before, "after": after, "text": text}


def _part(turns: Sequence[Turn]) -> float | None:
    ideal = sum(turn.ideal_blocks for turn in turns)
    return round(sum(sum(turn.served.hit_blocks) for turn in turns) / ideal, 4) if ideal else None


def _percent(part: float | None) -> str:
    return "none" if part is None else f"{part:.1%}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _row(stage: str, system: str, found: dict[str, Any]) -> str:
    return _line(stage, system, [(text(found), width) for _, width, text in _COLUMNS])


def _line(stage: str, system: str, cells: list[tuple[str, int]]) -> str:
    return f"{stage:8}{system:16}" + "".join(f"{text:>{width}}" for text, width in cells)
