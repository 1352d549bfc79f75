"""Stores the KV cache of two prompts and finds their common beginning again.

No model runs: random bytes stand for the KV cache. The store is a directory of at most 64 MiB, made
if it is missing; nothing is written anywhere else. The second run finds what the first one stored.

    python examples/quickstart.py /tmp/kv    runs it
    dalsegno ls /tmp/kv                      shows what it stored
    rm -r /tmp/kv                            removes it
"""

import argparse
import hashlib

import numpy as np

import dalsegno

LAYERS, SLICE_BYTES, BLOCK_TOKENS = 4, 16384, 16


def chain_of(tokens: list[int]) -> list[bytes]:
    """Names each whole block of a prompt; a name commits to all tokens up to its block."""
    hashes, previous = [], b""
    for end in range(BLOCK_TOKENS, len(tokens) + 1, BLOCK_TOKENS):
        block = np.array(tokens[end - BLOCK_TOKENS : end], dtype=np.int64)
        previous = hashlib.sha256(previous + block.tobytes()).digest()
        hashes.append(previous)
    return hashes


def compute(tokens: list[int], block: int) -> np.ndarray:
    """Stands for the model: the KV values of one block, all layers."""
    numbers = np.random.default_rng(sum(tokens[: (block + 1) * BLOCK_TOKENS]))
    return numbers.integers(0, 256, (LAYERS, SLICE_BYTES), dtype=np.uint8)


def serve(namespace: dalsegno.Namespace, tokens: list[int]) -> tuple[int, int]:
    """Gets the KV values of a prompt: loads what is there, computes and puts the rest."""
    chain = chain_of(tokens)
    cache = np.empty((len(chain), LAYERS, SLICE_BYTES), dtype=np.uint8)
    # However many blocks come back, they are verified; the others are simply computed.
    loaded = namespace.get_batch(chain, list(cache), timeout_s=1.0)
    for block in range(loaded, len(chain)):
        cache[block] = compute(tokens, block)
    namespace.put_batch(chain, list(cache[loaded:]), first=loaded)
    return loaded, len(chain) - loaded


def main(path: str) -> None:
    """Serves two prompts that begin alike."""
    # Who may share these bytes: whatever would make another model compute other values.
    fields = {"model": "example", "weights": "sha256:0f3c", "dtype": "uint8", "layout": "LB"}
    system = list(range(1000))
    with dalsegno.open(path, capacity="64MiB") as store:
        namespace = store.namespace(fields, layers=LAYERS, slice_bytes=SLICE_BYTES)
        for question in (list(range(5000, 5200)), list(range(7000, 7100))):
            loaded, computed = serve(namespace, system + question)
            print(f"{loaded} blocks loaded, {computed} computed")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", metavar="DIR", help="where the store is, such as /tmp/kv")
    main(parser.parse_args().directory)
