"""Ten stages of changing hit rates, served by the store, by one file per block and by memory alone.

The workload is that of the SGLang-LSM paper, shrunk: fewer prompts, and fewer bytes per token than
the model's KV cache has. Bytes are really written and read, through direct I/O and without syncs.
Only compute is modelled. The time to the first token is the measured load plus the modelled prefill
of the rest. Every backend has the same budget of disk and of memory and a process of its own. They
take turns stage by stage. Saving comes after the first token, so it costs CPU but delays nothing.

Then the same runs on small file systems with the inodes that mkfs.ext4 makes by default, and with
blocks of 4 KiB. One file per block runs out of inodes long before it runs out of bytes. That part
needs root, to mount.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from dalsegno.paths import local_path
from dalsegno_bench.dynamic import backends, plot
from dalsegno_bench.dynamic.report import broke, result_of, tables
from dalsegno_bench.dynamic.served import Setup
from dalsegno_bench.dynamic.turns import Scale, Turn, take_turns
from dalsegno_bench.machine import image
from dalsegno_bench.workload import REUSES, Dynamic
from dalsegno_bench.workload.prefill import PREFILLS

SUMMARY = "ten stages of changing hit rates: the store against one file per block and memory alone"

GIB = 1 << 30
MIB = 1 << 20
# The paper's: 100 million tokens before stages of 1,000 requests.
WARMUP_TOKENS_PER_REQUEST = 100_000
SYSTEMS = ("memory", "files", "dalsegno-memory", "dalsegno-lsm")
# On an image of 1 GiB inodes run out in the fifth of ten stages.
COLLAPSE = Dynamic(prompt_tokens=4096, block_tokens=16, requests=60, warmup_prompts=100)
COLLAPSE_BLOCK_BYTES = 4096
COLLAPSE_SYSTEMS = ("files", "files-evict", "dalsegno-memory", "dalsegno-lsm")
# Of an image's bytes.
COLLAPSE_DISK_SHARE = 0.8


def main(argv: Sequence[str]) -> int:
    """Runs the bench; the last line on standard output is its result as JSON.

    Args:
        argv: As ``--help`` shows.

    Returns:
        0; 1 if a backend returned wrong blocks; 2 if it cannot run here.
    """
    options = _parser().parse_args(argv)
    lacking = plot.missing() if options.plot else None
    if lacking is not None:
        print(f"dalsegno: no picture: {lacking}", file=sys.stderr)
        return 2
    # As for Ctrl-C: unmount and remove what was made.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    directory = Path(tempfile.mkdtemp(prefix="dalsegno-bench-", dir=options.dir))
    result: dict[str, Any] = {"bench": "dynamic", "load": [round(os.getloadavg()[0], 2)]}
    try:
        if options.part in {"both", "stages"}:
            result["stages"] = [
                _stages(options, directory / str(tokens), tokens) for tokens in options.prompts
            ]
        if options.part in {"both", "collapse"}:
            result["collapse"] = _collapse(options, directory)
    except (RuntimeError, ValueError) as error:
        print(f"dalsegno: {error}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)
    result["load"].append(round(os.getloadavg()[0], 2))
    parts = [*result.get("stages", []), *([result["collapse"]] if "collapse" in result else [])]
    parts = [part for part in parts if "systems" in part]
    if options.plot and parts:
        plot.draw(parts, options.plot)
    wrong = sum(system["wrong_blocks"] for part in parts for system in part["systems"].values())
    print(json.dumps(result))
    return 1 if wrong else 0


def _stages(options: argparse.Namespace, directory: Path, prompt_tokens: int) -> dict[str, Any]:
    """The ten stages for one length of prompts; returns their part of the result."""
    plan = Dynamic(
        prompt_tokens=prompt_tokens,
        block_tokens=options.block_tokens,
        requests=options.requests,
        warmup_prompts=-(-WARMUP_TOKENS_PER_REQUEST * options.requests // prompt_tokens),
        reuse=options.reuse,
        seed=options.seed,
    )
    block_bytes = options.kv_bytes_per_token * options.block_tokens
    scale = Scale(plan, block_bytes, PREFILLS[options.model])
    disk_bytes, memory_bytes = int(options.disk_gib * GIB), options.memory_mib * MIB
    directory.mkdir()
    setups = [
        Setup(system, directory / system, block_bytes, plan.blocks, disk_bytes, memory_bytes)
        for system in options.systems
    ]
    title = (
        f"prompts of {prompt_tokens} tokens, {plan.warmup_prompts} and then {plan.requests} in each"
        f" stage; {_scaled(scale)}; {options.disk_gib:g} GiB of disk, {options.memory_mib} MiB of"
        " memory each"
    )
    turns = _run(plan, setups, f"{prompt_tokens} tokens")
    # Removed now: the next length needs the space.
    shutil.rmtree(directory)
    tables(title, turns, scale)
    return result_of(turns, scale) | {"title": title}


def _collapse(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """The stages on file systems with few inodes; returns their part of the result."""
    lacking = image.missing()
    if lacking is not None:
        print(f"\nfile systems with few inodes: SKIPPED, {lacking}")
        return {"skipped": lacking}
    plan = replace(COLLAPSE, reuse=options.reuse, seed=options.seed)
    scale = Scale(plan, COLLAPSE_BLOCK_BYTES, PREFILLS[options.model])
    image_bytes = int(options.image_gib * GIB)
    memory_bytes = backends.METADATA_BYTES + MIB
    with ExitStack() as stack:
        setups = []
        try:
            for system in COLLAPSE_SYSTEMS:
                mount = stack.enter_context(image.mounted(directory / system, image_bytes))
                disk_bytes = int(COLLAPSE_DISK_SHARE * image_bytes)
                setups.append(
                    Setup(
                        system,
                        mount / "data",
                        COLLAPSE_BLOCK_BYTES,
                        plan.blocks,
                        disk_bytes,
                        memory_bytes,
                    )
                )
        except image.NoImageError as error:
            print(f"\nfile systems with few inodes: SKIPPED, {error}")
            return {"skipped": str(error)}
        inodes = os.statvfs(setups[0].directory.parent).f_files
        title = (
            f"ext4 of {options.image_gib:g} GiB with its default of {inodes} inodes each; prompts"
            f" of {plan.prompt_tokens} tokens, {plan.warmup_prompts} and then {plan.requests} in"
            f" each stage; {_scaled(scale)}; {disk_bytes / GIB:g} GiB of disk,"
            f" {memory_bytes // MIB} MiB of memory each"
        )
        turns = _run(plan, setups, "few inodes")
    tables(title, turns, scale)
    found = {system: broke(turns, scale, system) for system in COLLAPSE_SYSTEMS}
    for one in found.values():
        print(one["text"])
    return result_of(turns, scale) | {"title": title, "inodes": inodes, "broke": found}


def _scaled(scale: Scale) -> str:
    plan, prefill = scale.plan, scale.prefill
    return (
        f"blocks of {plan.block_tokens} tokens and {scale.block_bytes >> 10} KiB,"
        f" {scale.shrunk:g} times smaller than {prefill.model}'s; prefill on {prefill.gpu}"
    )


def _run(plan: Dynamic, setups: list[Setup], what: str) -> list[Turn]:
    """Takes turns under a progress bar."""
    prompts = len(setups) * (plan.warmup_prompts + len(plan.expected) * plan.requests)
    columns = (
        TextColumn("{task.description:44}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(what, total=prompts)

        def report(stage: int, system: str, count: int) -> None:
            name = f"stage {stage}" if stage else "warm-up"
            progress.update(task, advance=count, description=f"{what}, {name}: {system}")

        return take_turns(plan, setups, report)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _systems(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in backends.SYSTEMS]
    if unknown or len(set(names)) != len(names):
        raise argparse.ArgumentTypeError(f"choose from {', '.join(backends.SYSTEMS)}, each once")
    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dalsegno bench dynamic",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def add(name: str, default: Any, text: str, **more: Any) -> None:
        more.setdefault("type", type(default))
        parser.add_argument(f"--{name}", default=default, help=f"{text} (%(default)s)", **more)

    add("dir", Path(tempfile.gettempdir()), "where to write", type=local_path)
    add("part", "both", "what to run", choices=("both", "stages", "collapse"))
    add("prompts", "4096,8192,16384", "lengths of prompts, in tokens", type=_numbers)
    add("requests", 50, "prompts of a stage; the warm-up has 100,000 tokens for each, as the paper")
    add("block-tokens", 64, "tokens of a block")
    add("kv-bytes-per-token", 1024, "bytes stored per token, whatever the model needs")
    add("disk-gib", 4.0, "budget of disk of each backend")
    add("memory-mib", 192, "budget of memory of each backend, 32 MiB of it for other than blocks")
    add("systems", ",".join(SYSTEMS), "backends of the stages", type=_systems)
    add("model", "qwen3-30b-a3b/h20", "whose prefill", choices=tuple(PREFILLS))
    add("reuse", "recent", "which earlier prompts are shared", choices=REUSES)
    add("seed", 1, "another seed makes other prompts")
    add("image-gib", 1.0, "size of each small file system")
    add("plot", None, "also draw a picture into this file, with matplotlib", type=local_path)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
