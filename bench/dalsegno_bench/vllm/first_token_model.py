"""The model of `dalsegno bench first-token`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from dalsegno_bench.vllm.llama import Llama

__all__ = ["Model", "layers_for"]

# Times that a layer is computed to find out how long that takes.
TIMED = 3
LEAST_LAYERS, MOST_LAYERS = 4, 32


class Model(Llama):
    """A model whose answers depend on all of a prompt.

    Attributes:
        block_bytes: Of the blocks of the store.
    """

    BLOCK_TOKENS = 32
    KV_HEADS, WIDTH, MOST_TOKENS = 2, 512, 8192

    def __init__(self, folder: Path, layers: int) -> None:
        """Writes its configuration."""
        super().__init__(folder, layers)
        self.block_bytes = self.BLOCK_TOKENS * self.bytes_per_token

    def write_weights(self) -> None:
        """Writes weights with which the answer depends on all of the prompt."""
        import torch
        from safetensors.torch import save_file

        generator = torch.Generator().manual_seed(7)
        width, inner = self.WIDTH, 2 * self.WIDTH
        queries, keys = self.HEADS * self.HEAD_SIZE, self.KV_HEADS * self.HEAD_SIZE

        def noise(rows: int, columns: int, scale: float = 1.0) -> Any:
            return torch.randn(rows, columns, generator=generator) * scale / columns**0.5

        weights = {
            "model.embed_tokens.weight": noise(self.VOCABULARY, width),
            "lm_head.weight": noise(self.VOCABULARY, width),
            "model.norm.weight": torch.ones(width),
        }
        for number in range(self.layers):
            layer = f"model.layers.{number}"
            # With large queries and keys a token attends to few others.
            weights |= {
                f"{layer}.input_layernorm.weight": torch.ones(width),
                f"{layer}.post_attention_layernorm.weight": torch.ones(width),
                f"{layer}.self_attn.q_proj.weight": noise(queries, width, 2.0),
                f"{layer}.self_attn.k_proj.weight": noise(keys, width, 2.0),
                f"{layer}.self_attn.v_proj.weight": noise(keys, width),
                f"{layer}.self_attn.o_proj.weight": noise(width, queries),
                f"{layer}.mlp.gate_proj.weight": noise(inner, width),
                f"{layer}.mlp.up_proj.weight": noise(inner, width),
                f"{layer}.mlp.down_proj.weight": noise(width, inner),
            }
        save_file(weights, self.folder / "model.safetensors")


def layers_for(tokens: int, seconds: float) -> int:
    """Returns how many layers compute a prompt in about `seconds`, with one thread.

    Args:
        tokens: Of the prompt.
        seconds: Of its prefill.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        layer_s = min(_layer_s(tokens) for _ in range(TIMED))
    finally:
        torch.set_num_threads(threads)
    return min(max(round(seconds / layer_s), LEAST_LAYERS), MOST_LAYERS)


def _layer_s(tokens: int) -> float:
    """Returns the seconds in which PyTorch computes what a layer does with a prompt."""
    import torch

    width, queries = Model.WIDTH, Model.HEADS * Model.HEAD_SIZE
    hidden, inner = torch.ones(tokens, width), torch.ones(width, 2 * width)
    weights, back = torch.ones(width, queries), torch.ones(queries, width)
    attend = torch.nn.functional.scaled_dot_product_attention
    started = time.perf_counter()
    parts = [hidden @ weights for _ in range(3)]
    # PyTorch has a fast way for batches only.
    heads = [part.view(1, tokens, Model.HEADS, -1).transpose(1, 2) for part in parts]
    hidden = attend(*heads, is_causal=True).transpose(1, 2).reshape(tokens, queries) @ back
    _ = ((hidden @ inner) * (hidden @ inner)) @ inner.T
    return time.perf_counter() - started
