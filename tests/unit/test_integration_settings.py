"""Settings that the integrations share."""

from __future__ import annotations

import pytest

from dalsegno.integrations.common.settings import element_bytes, parse_bytes


@pytest.mark.parametrize(
    ("dtype", "width"),
    [
        ("bfloat16", 2),
        ("torch.bfloat16", 2),
        ("float16", 2),
        ("half", 2),
        ("float32", 4),
        ("float", 4),
        ("fp8", 1),
        ("fp8_e5m2", 1),
        ("fp8_ds_mla", 1),
        ("float8_e4m3fn", 1),
        ("int8_per_token_head", 1),
        ("nvfp4", None),
        ("int4_per_token_head", None),
        ("turboquant_k8v4", None),
        ("auto", None),
        ("", None),
    ],
)
def test_the_width_of_a_number_comes_from_the_caches_dtype(dtype: str, width: int | None) -> None:
    assert element_bytes(dtype) == width


def test_byte_counts_are_read() -> None:
    assert [parse_bytes("x", one) for one in (7, "7", "1.5KiB", "2 TB")] == [7, 7, 1536, 2 * 10**12]
