"""A model of random weights whose heads can be divided between ranks: fast, and of no wisdom."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn import functional

LAYERS, HEADS, KV_HEADS, WIDTH, INNER, VOCABULARY = 4, 4, 2, 128, 256, 512
CONTEXT_TOKENS = 2048


def prepare(folder: Path) -> Path:
    """Makes a model in a folder that does not exist; returns it."""
    folder.mkdir(parents=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "num_hidden_layers": LAYERS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT_TOKENS,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(_weights(), folder / "model.safetensors", {"format": "pt"})
    return folder


def answer(prompt: list[int], tokens: int) -> tuple[list[int], list[float]]:
    """Returns the next tokens, and their log probabilities, computed without vLLM."""
    weights, known, logprobs = _weights(), list(prompt), []
    for _ in range(tokens):
        scores = torch.log_softmax(_last_scores(weights, known), -1)
        known.append(int(scores.argmax()))
        logprobs.append(float(scores.max()))
    return known[len(prompt) :], logprobs


def _last_scores(weights: dict[str, torch.Tensor], tokens: list[int]) -> torch.Tensor:
    """Returns the scores of all tokens that may come next."""
    state = weights["model.embed_tokens.weight"][tokens]
    mask = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
    for layer in range(LAYERS):
        of = {
            name.removeprefix(f"model.layers.{layer}."): weight
            for name, weight in weights.items()
            if name.startswith(f"model.layers.{layer}.")
        }
        normal = functional.rms_norm(state, (WIDTH,), of["input_layernorm.weight"], 1e-6)
        q, k, v = (
            (normal @ of[f"self_attn.{one}_proj.weight"].T).unflatten(1, (-1, WIDTH // HEADS))
            for one in "qkv"
        )
        q, k, v = _turned(q), _turned(k), v.transpose(0, 1)
        k, v = (one.repeat_interleave(HEADS // KV_HEADS, 0) for one in (k, v))
        seen = functional.scaled_dot_product_attention(q, k, v, mask)
        state = state + seen.transpose(0, 1).flatten(1) @ of["self_attn.o_proj.weight"].T
        normal = functional.rms_norm(state, (WIDTH,), of["post_attention_layernorm.weight"], 1e-6)
        gate, up = (normal @ of[f"mlp.{one}_proj.weight"].T for one in ("gate", "up"))
        state = state + (functional.silu(gate) * up) @ of["mlp.down_proj.weight"].T
    normal = functional.rms_norm(state[-1], (WIDTH,), weights["model.norm.weight"], 1e-6)
    return normal @ weights["lm_head.weight"].T


def _turned(heads: torch.Tensor) -> torch.Tensor:
    """Turns pairs of numbers by angles that follow from the position; heads come first then."""
    count, _, size = heads.shape
    speeds = 10_000.0 ** -(torch.arange(0, size, 2) / size)
    angles = torch.arange(count)[:, None, None] * speeds
    one, other = heads.chunk(2, -1)
    turned = (one * angles.cos() - other * angles.sin(), other * angles.cos() + one * angles.sin())
    return torch.cat(turned, -1).transpose(0, 1)


def _weights() -> dict[str, torch.Tensor]:
    """Returns weights under which each token depends on all before it."""
    noise = torch.Generator().manual_seed(5)

    def random(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=noise) * (2.0 / columns**0.5)

    head = WIDTH // HEADS
    weights = {
        "model.embed_tokens.weight": torch.randn(VOCABULARY, WIDTH, generator=noise),
        "model.norm.weight": torch.ones(WIDTH),
        "lm_head.weight": random(VOCABULARY, WIDTH),
    }
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        weights |= {
            f"{name}.input_layernorm.weight": torch.ones(WIDTH),
            f"{name}.post_attention_layernorm.weight": torch.ones(WIDTH),
            f"{name}.self_attn.q_proj.weight": random(HEADS * head, WIDTH),
            f"{name}.self_attn.k_proj.weight": random(KV_HEADS * head, WIDTH),
            f"{name}.self_attn.v_proj.weight": random(KV_HEADS * head, WIDTH),
            f"{name}.self_attn.o_proj.weight": random(WIDTH, HEADS * head),
            f"{name}.mlp.gate_proj.weight": random(INNER, WIDTH),
            f"{name}.mlp.up_proj.weight": random(INNER, WIDTH),
            f"{name}.mlp.down_proj.weight": random(WIDTH, INNER),
        }
    return weights
