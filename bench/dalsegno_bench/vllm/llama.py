"""A Llama model of random weights that real vLLM runs in a bench."""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["Llama"]


class Llama:
    """The configuration of a model in float32; a bench says how large its parts are.

    Attributes:
        folder: Where it is.
        layers: How many it has.
        bytes_per_token: Of the KV cache.
    """

    VOCABULARY, HEADS, HEAD_SIZE = 4096, 4, 128
    KV_HEADS: int
    WIDTH: int
    MOST_TOKENS: int

    def __init__(self, folder: Path, layers: int) -> None:
        """Writes its configuration into a new folder.

        Args:
            folder: It must not exist.
            layers: How many it has.
        """
        folder.mkdir()
        config = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.WIDTH,
            "intermediate_size": 2 * self.WIDTH,
            "num_attention_heads": self.HEADS,
            "num_key_value_heads": self.KV_HEADS,
            "head_dim": self.HEAD_SIZE,
            "num_hidden_layers": layers,
            "vocab_size": self.VOCABULARY,
            "max_position_embeddings": self.MOST_TOKENS,
            "torch_dtype": "float32",
        }
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        self.folder, self.layers = folder, layers
        self.bytes_per_token = layers * 2 * self.KV_HEADS * self.HEAD_SIZE * 4
