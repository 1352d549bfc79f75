"""Compression of KV caches: its ratio, its speed, and what it costs a store.

Blocks are put and got with compression and without, round by round in turns, so that noise of the
machine hits both alike. Figures are medians over the rounds. The store counts ratio and speed per
core. Speeds and CPU seconds of puts and gets are those of whole calls. A block has 16 tokens. A
slice has the keys of its layer, token by token, then the values.

The cache is captured from a real model with ``--capture``, or synthetic with the statistics of one:
see :func:`made_up`.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import mmap
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import dalsegno
from dalsegno.paths import local_path
from dalsegno.stats import CodecStats
from dalsegno_bench.machine.speed import Sample, timed

__all__ = ["SUMMARY", "Cache", "main", "report"]

SUMMARY = "what the codec makes of KV caches: ratio, speed per core, cost of puts and gets"

BLOCK_TOKENS = 16
BATCH_BLOCKS = 64
GB = 1e9


@dataclass(frozen=True)
class Cache:
    """A KV cache, in blocks.

    Attributes:
        data: Blocks one after the other, bf16.
        layers: Layers of a block.
        slice_bytes: Bytes of one layer of a block.
        origin: Where it comes from.
    """

    data: memoryview
    layers: int
    slice_bytes: int
    origin: str

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return self.layers * self.slice_bytes


def made_up(layers: int = 16, channels: int = 512, tokens: int = 1024) -> Cache:
    """A cache with the statistics of a real one, without its structure.

    Every channel has a scale of its own, log-normal, as measured channels have; keys also have an
    offset that stays over the tokens, which is what makes their signs and exponents repeat.
    """
    np = importlib.import_module("numpy")
    rng = np.random.default_rng(7)
    blocks = tokens // BLOCK_TOKENS
    shape = (layers, 2, blocks, BLOCK_TOKENS, channels)
    scale = np.exp(rng.normal(-1.0, 0.8, (layers, 2, 1, 1, channels)))
    offset = rng.normal(0.0, 1.5, (layers, 2, 1, 1, channels)) * scale
    offset[:, 1] = 0
    values = (offset + scale * rng.standard_normal(shape)).astype(np.float32)
    halves = (values.view(np.uint32) >> 16).astype(np.uint16)
    data = np.ascontiguousarray(halves.transpose(2, 0, 1, 3, 4)).view(np.uint8).reshape(-1)
    slice_bytes = 2 * BLOCK_TOKENS * channels * 2
    return Cache(memoryview(data), layers, slice_bytes, "made up")


def captured(path: Path) -> Cache:
    """A cache that :func:`capture` has written: a line of JSON, then the blocks."""
    with path.open("rb") as file:
        facts = json.loads(file.readline())
        data = memoryview(file.read())
    return Cache(data, facts["layers"], facts["slice_bytes"], facts["origin"])


def capture(model: str, text: Path, out: Path) -> None:
    """Writes the cache that a model has after reading a text; needs torch and transformers."""
    torch, transformers = (importlib.import_module(n) for n in ("torch", "transformers"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    network = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    ids = tokenizer(text.read_text(), return_tensors="pt").input_ids[:, :4096]
    ids = ids[:, : ids.shape[1] // BLOCK_TOKENS * BLOCK_TOKENS]
    with torch.no_grad():
        cache = network(ids, use_cache=True, logits_to_keep=1).past_key_values
    pairs = [(layer.keys, layer.values) for layer in cache.layers]
    # [heads, tokens, width] -> [blocks, tokens of a block, heads, width]
    cut = [
        torch.stack(
            [
                part[0].transpose(0, 1).reshape(-1, BLOCK_TOKENS, *part[0].shape[::2])
                for part in pair
            ],
            dim=1,
        )
        for pair in pairs
    ]
    blocks = torch.stack(cut, dim=1).contiguous()
    facts = {
        "layers": len(pairs),
        "slice_bytes": blocks[0, 0].numel() * 2,
        "origin": f"{Path(model).name}, {ids.shape[1]} tokens of {text.name}",
    }
    with out.open("wb") as file:
        file.write(json.dumps(facts).encode() + b"\n")
        file.write(blocks.view(torch.uint8).numpy().tobytes())


class Subject:
    """One store, with compression or without.

    Args:
        directory: Where it lives.
        codec: ``none`` or ``zstd``.
        cache: What is put.
        total_bytes: Bytes of a round.
    """

    def __init__(self, directory: Path, codec: str, cache: Cache, total_bytes: int) -> None:
        capacity = 3 * total_bytes + (1 << 30)
        self.store = dalsegno.open(directory, capacity=capacity, dram=0, merge_rate=0)
        self.namespace = self.store.namespace(
            {"bench": "codec"},
            layers=cache.layers,
            slice_bytes=cache.slice_bytes,
            codec=codec,
            element_bytes=2,
        )
        self.cache = cache
        self.batches = max(1, total_bytes // (BATCH_BLOCKS * cache.block_bytes))
        self.put: list[Sample] = []
        self.get: list[Sample] = []

    def round(self, number: int, source: memoryview, target: memoryview) -> None:
        """Puts and gets everything once, and compares the last batch."""
        size = self.cache.block_bytes
        blocks = [source[at : at + size] for at in range(0, len(source), size)]
        out = [target[at * size : (at + 1) * size] for at in range(BATCH_BLOCKS)]
        chains = [
            [
                hashlib.sha256(f"{number} {batch} {block}".encode()).digest()
                for block in range(BATCH_BLOCKS)
            ]
            for batch in range(self.batches)
        ]
        picks = [
            [blocks[(batch * BATCH_BLOCKS + i) % len(blocks)] for i in range(BATCH_BLOCKS)]
            for batch in range(self.batches)
        ]

        def put() -> None:
            for chain, batch in zip(chains, picks, strict=True):
                report = self.namespace.put_batch(chain, batch)
                assert report.stored == len(chain), report

        def get() -> None:
            for chain in chains:
                assert self.namespace.get_batch(chain, out) == len(chain)

        moved = self.batches * BATCH_BLOCKS * size
        self.put.append(timed(moved, put))
        self.get.append(timed(moved, get))
        assert all(a == b for a, b in zip(out, picks[-1], strict=True)), "wrong bytes"
        self.namespace.remove()


def aligned(total_bytes: int) -> memoryview:
    """Page-aligned memory, touched."""
    view = memoryview(mmap.mmap(-1, total_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    view[:] = bytes(total_bytes)
    return view


def run(directory: Path, cache: Cache, rounds: int, total_bytes: int) -> dict[str, object]:
    """Runs both stores in turns; returns the result."""
    load = [round(os.getloadavg()[0], 2)]
    count = min(len(cache.data) // cache.block_bytes, total_bytes // cache.block_bytes)
    source = aligned(count * cache.block_bytes)
    source[:] = cache.data[: len(source)]
    target = aligned(BATCH_BLOCKS * cache.block_bytes)
    subjects = {
        codec: Subject(directory / codec, codec, cache, total_bytes) for codec in ("none", "zstd")
    }
    for number in range(rounds):
        for codec in ("none", "zstd") if number % 2 else ("zstd", "none"):
            subjects[codec].round(number, source, target)
        print(f"round {number + 1} of {rounds} done", file=sys.stderr, flush=True)
    stats = subjects["zstd"].store.stats()["log"]["codec"]
    for subject in subjects.values():
        subject.store.close()
    load.append(round(os.getloadavg()[0], 2))
    samples = {codec: (subject.put, subject.get) for codec, subject in subjects.items()}
    return report(cache.origin, samples, stats, load)


def report(
    origin: str,
    samples: dict[str, tuple[list[Sample], list[Sample]]],
    stats: CodecStats,
    load: list[float],
) -> dict[str, object]:
    """Prints the table and makes the result."""
    ratio = stats["encoded_bytes"] / max(1, stats["encoded_stored_bytes"])
    encode = (stats["encoded_bytes"] + stats["not_shrunk_bytes"]) / max(1, stats["encode_ns"])
    decode = stats["decoded_bytes"] / max(1, stats["decode_ns"])
    print(
        f"{origin}: ratio {ratio:.3f}, compressed at {encode:.2f} GB/s per core, decompressed at",
        end="",
    )
    print(f" {decode:.2f}")
    print(f"{'codec':8}{'put GB/s':>12}{'get GB/s':>12}{'put CPU s/GB':>14}{'get CPU s/GB':>14}")
    result: dict[str, object] = {
        "bench": "codec",
        "data": origin,
        "ratio": round(ratio, 4),
        "encode_gb_per_s": round(encode, 3),
        "decode_gb_per_s": round(decode, 3),
        "not_shrunk_bytes": stats["not_shrunk_bytes"],
    }
    for codec, (put, get) in samples.items():
        speeds = [statistics.median(one.gb_per_s for one in way) for way in (put, get)]
        costs = [statistics.median(one.cpu_s_per_gb for one in way) for way in (put, get)]
        print(f"{codec:8}{speeds[0]:12.2f}{speeds[1]:12.2f}{costs[0]:14.3f}{costs[1]:14.3f}")
        result[codec] = {
            "put_gb_per_s": round(speeds[0], 3),
            "get_gb_per_s": round(speeds[1], 3),
            "put_cpu_s_per_gb": round(costs[0], 4),
            "get_cpu_s_per_gb": round(costs[1], 4),
        }
    return result | {"load": load}


def main(argv: Sequence[str]) -> int:
    """Runs the bench; the last line on standard output is its result as JSON."""
    parser = argparse.ArgumentParser(
        prog="dalsegno bench codec", description=f"Measures {SUMMARY}."
    )
    add = parser.add_argument
    add("--kv", type=local_path, help="a cache that --capture wrote; else one is made up")
    add(
        "--capture",
        type=local_path,
        help="write the cache of --model after reading --text, and end",
    )
    add("--model", type=os.path.expanduser, help="folder of a model for transformers")
    add("--text", type=local_path, help="what the model reads")
    add("--rounds", type=int, default=5, help="rounds (default %(default)s)")
    add("--mib", type=int, default=512, help="MiB per round (default %(default)s)")
    add("--dir", type=local_path, default=Path("/var/tmp"), help="where to write")  # noqa: S108
    options = parser.parse_args(argv)
    if options.capture:
        if not (options.model and options.text):
            parser.error("--capture needs --model and --text")
        capture(options.model, options.text, options.capture)
        return 0
    cache = captured(options.kv) if options.kv else made_up()
    with tempfile.TemporaryDirectory(
        prefix="dalsegno-bench-", dir=options.dir, ignore_cleanup_errors=True
    ) as directory:
        result = run(Path(directory), cache, options.rounds, options.mib << 20)
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
