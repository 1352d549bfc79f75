"""What cannot be measured here, modelled: how long a prefill takes, how large a KV cache is."""

from dalsegno.model.prefill import (
    KV_BYTES_PER_TOKEN,
    PREFILLS,
    Prefill,
    gqa_kv_bytes_per_token,
    mla_kv_bytes_per_token,
)

__all__ = [
    "KV_BYTES_PER_TOKEN",
    "PREFILLS",
    "Prefill",
    "gqa_kv_bytes_per_token",
    "mla_kv_bytes_per_token",
]
