"""How long it takes to compute a prompt of which a prefix is cached, and how large its KV cache is.

``T(L, p) = a (L - p) + b (L^2 - p^2)``: every token that is computed passes through the weights,
which costs ``a``, and attends to all tokens before it, which costs ``2 b`` each.

The model has no batching, no queue and no start-up cost, and is meant for prompts of 4k tokens and
more. A mixture of experts fits badly below 8k, where few tokens share an expert.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "KV_BYTES_PER_TOKEN",
    "PREFILLS",
    "Prefill",
    "gqa_kv_bytes_per_token",
    "mla_kv_bytes_per_token",
]


@dataclass(frozen=True)
class Prefill:
    """The prefill of one model on one GPU.

    Attributes:
        model: Which model; a key of :data:`KV_BYTES_PER_TOKEN`.
        gpu: On what.
        linear_s: Seconds per token computed, ``a``.
        quadratic_s: Seconds per squared token, ``b``.
        source: Where the constants come from.
    """

    model: str
    gpu: str
    linear_s: float
    quadratic_s: float
    source: str

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of the KV cache per token."""
        return KV_BYTES_PER_TOKEN[self.model]

    def seconds(self, tokens: int, cached_tokens: int = 0) -> float:
        """Seconds to compute a prompt.

        Args:
            tokens: Tokens of the prompt, ``L``.
            cached_tokens: Leading tokens whose KV cache is there already, ``p``.

        Returns:
            Seconds; 0 if all is cached.

        Raises:
            ValueError: More is cached than there is.
        """
        if not 0 <= cached_tokens <= tokens:
            raise ValueError(f"{cached_tokens} of {tokens} tokens cannot be cached")
        fresh = tokens - cached_tokens
        return fresh * (self.linear_s + self.quadratic_s * (tokens + cached_tokens))


def gqa_kv_bytes_per_token(
    layers: int, kv_heads: int, head_dim: int, *, value_bytes: int = 2
) -> int:
    """Bytes per token of grouped-query attention: a key and a value per layer and KV head."""
    return 2 * layers * kv_heads * head_dim * value_bytes


def mla_kv_bytes_per_token(
    layers: int, kv_lora_rank: int, rope_dim: int, *, value_bytes: int = 2
) -> int:
    """Bytes per token of multi-head latent attention: one latent and one rotated key per layer."""
    return layers * (kv_lora_rank + rope_dim) * value_bytes


# In 16 bits, from the models' published configurations.
KV_BYTES_PER_TOKEN = {
    "llama-3.1-8b": gqa_kv_bytes_per_token(32, 8, 128),
    "llama-3.1-70b": gqa_kv_bytes_per_token(80, 8, 128),
    "qwen3-8b": gqa_kv_bytes_per_token(36, 8, 128),
    "qwen3-32b": gqa_kv_bytes_per_token(64, 8, 128),
    "qwen3-30b-a3b": gqa_kv_bytes_per_token(48, 4, 128),
    "qwen3-235b": gqa_kv_bytes_per_token(94, 4, 128),
    "glm-4-9b": gqa_kv_bytes_per_token(40, 2, 128),
    "deepseek-v3": mla_kv_bytes_per_token(61, 512, 64),
    "smollm2-135m": gqa_kv_bytes_per_token(30, 3, 64),
}

_ESTIMATED = (
    "fitted to the estimates of a kernel-database model for vLLM, 1k to 128k tokens, with up to "
    "98% cached; within 6% at 1k and 4% from 4k on"
)
_MEASURED = "measured with vLLM, KV of 96 KiB a token; within 0.3% from 8k to 64k tokens"

PREFILLS = {
    f"{one.model}/{one.gpu}": one
    for one in (
        Prefill("llama-3.1-8b", "a100", 58.2e-6, 1.45e-9, _ESTIMATED),
        Prefill("llama-3.1-8b", "h100", 20.66e-6, 0.399e-9, _ESTIMATED),
        Prefill("llama-3.1-8b", "h200", 20.62e-6, 0.407e-9, _ESTIMATED),
        Prefill("qwen3-32b", "h200", 89.9e-6, 1.62e-9, _ESTIMATED),
        Prefill("qwen3-30b-a3b", "h20", 48.8e-6, 2.80e-9, _MEASURED),
    )
}
