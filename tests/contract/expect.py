"""The results that a namespace must return when it holds exactly these blocks."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tests.contract.subjects import content

import dalsegno


def leading(present: Sequence[bool]) -> int:
    """How many values are true before the first false one."""
    return present.index(False) if False in present else len(present)


def buffers(namespace: dalsegno.Namespace, count: int) -> list[bytearray]:
    return [bytearray(namespace.block_bytes) for _ in range(count)]


def expect(
    namespace: dalsegno.Namespace, hashes: Sequence[bytes], stored: Collection[bytes]
) -> None:
    """Reads blocks in every way; twice, since the second read may hit DRAM."""
    present = [one in stored for one in hashes]
    right = [content(one, namespace.block_bytes) for one in hashes]
    assert namespace.contains(hashes) == present
    assert namespace.probe(hashes) == leading(present)
    for turn in range(2):
        out = buffers(namespace, len(hashes))
        assert namespace.get_batch(hashes, out) == leading(present)
        assert out[: leading(present)] == right[: leading(present)]
        out = buffers(namespace, len(hashes))
        assert namespace.get_each(hashes, out, timeout_s=60 if turn else None) == present
        assert [one for one, is_there in zip(out, present, strict=True) if is_there] == [
            one for one, is_there in zip(right, present, strict=True) if is_there
        ]
        out = buffers(namespace, len(hashes))
        load = namespace.load(hashes, out, timeout_s=60 if turn else None)
        ready = [load.wait_layer(layer, timeout_s=60) for layer in range(namespace.layers)]
        assert load.wait(60)
        assert load.result() == leading(present)
        assert ready == [all(present)] * namespace.layers
        assert out[: leading(present)] == right[: leading(present)]


def expect_right_or_absent(namespace: dalsegno.Namespace, hashes: Sequence[bytes]) -> list[bool]:
    """Reads blocks that may have been evicted: every block that is returned must be right."""
    out = buffers(namespace, len(hashes))
    found = namespace.get_each(hashes, out)
    for one, block, is_there in zip(hashes, out, found, strict=True):
        assert not is_there or block == content(one, namespace.block_bytes)
    return found
