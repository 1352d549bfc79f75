"""What the engine's process changes and reads inside vLLM and Dalsegno.

Each function names one thing that has no public interface. It raises if what it changes is not
there, so that no measurement is of something else.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from typing import Any

# Scale of all matrices but those of norms: answers depend on the prompt, and most of their tokens
# are far from a tie in bfloat16.
GAIN = 2.0
LOAD_FORMAT = "noise"
# A load runs for this long before its process is killed.
KILL_AFTER_S = 0.004
# A variable of the process that lets requests jump.
ALLOW_JUMPS = "DALSEGNO_GPU_ALLOW_JUMPS"
# How many numbers of a block are taken as a sample.
SAMPLE_VALUES = 32


def register_weights() -> None:
    """Adds the load format `LOAD_FORMAT` to vLLM: normal weights, scaled by their width.

    They are the same in each process. The weights of vLLM's own format `dummy` are so small that no
    answer depends on the prompt, and Dalsegno gives them another identity in each process.
    """
    import torch
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    @register_model_loader(LOAD_FORMAT)
    class Noise(BaseModelLoader):  # type: ignore[misc]
        def download_model(self, model_config: Any) -> None:
            """Fetches nothing."""

        def load_weights(self, model: Any, model_config: Any) -> None:
            """Draws all weights; those of norms are 1."""
            del model_config
            for seed, tensor in enumerate(model.state_dict().values()):
                if tensor.dim() < 2:
                    tensor.fill_(1.0)
                    continue
                draw = torch.Generator(device=tensor.device).manual_seed(seed)
                tensor.normal_(0.0, GAIN / tensor.shape[-1] ** 0.5, generator=draw)


def set_in_steps(core: Any, *, allowed: bool) -> bool:
    """Changes whether an engine loads inside steps, whatever its runner and scheduler are.

    Dalsegno decides that once (`direct.choice.loads_in_steps`), and the scheduler's half keeps it.

    Returns:
        Whether it did the other before.
    """
    state = vars(vars(vars(core.scheduler.connector)["_scheduler"])["_offers"])
    was: bool = state["_in_steps"]
    state["_in_steps"] = allowed
    return was != allowed


def allow_jumps() -> None:
    """Lets requests compute their front while their back is loaded, whatever computes."""
    from dalsegno.integrations.vllm.direct import choice

    assert callable(choice.jump_refusal), "Dalsegno asks for it there"
    setattr(choice, "jump_refusal", lambda *_: "")  # noqa: B010 - another signature


def set_front(core: Any, part: float) -> bool:
    """Changes which part of what is found is computed from now on while the others are loaded.

    Args:
        core: vLLM's engine core.
        part: The part; 0 computes everything, and a negative one leaves the decision to Dalsegno.

    Returns:
        Whether it could be loaded in this way.
    """
    from dalsegno.integrations.common.deciding import Decision, LoadDecider

    scheduler = vars(core.scheduler.connector)["_scheduler"]
    decider = vars(scheduler)["_offers"].decider
    vars(decider).pop("decide", None)

    def decide(wish: Any) -> Any:
        front = int(part * wish.blocks)
        if not wish.both_ends or not 0 < front < wish.blocks:
            return Decision(0)
        load_s = decider.between_s(0, front * decider.engine.block_tokens)
        return Decision(wish.blocks, load_s=load_s, front=front, part=-(-wish.blocks // 64))

    assert callable(LoadDecider.decide), "Dalsegno decides there"
    if part >= 0:
        vars(decider)["decide"] = decide
    return bool(scheduler.both_ends.is_possible)


def record_loads() -> list[dict[str, Any]]:
    """Returns a list that grows by each load of Dalsegno that ends: bytes, seconds, where it ran.

    Without Dalsegno, or on its tiered path, it stays empty.
    """
    ended: list[dict[str, Any]] = []
    try:
        from dalsegno.integrations.vllm.direct.worker import DirectWorker
    except ImportError:
        return ended
    name = "_end_load"
    usual = vars(DirectWorker)[name]

    def end(self: Any, running: Any) -> None:
        if running.load is not None:
            running.load.wait()
        usual(self, running)
        until = time.monotonic() if running.ended is None else running.ended
        job = running.job
        ended.append(
            {
                "blocks": len(job.chain),
                "seconds": round(until - running.started, 5),
                "way": job.way.name.lower(),
            }
        )

    setattr(DirectWorker, name, end)
    return ended


def kill_at_load() -> None:
    """Lets this process be killed a few milliseconds after its next load has begun."""
    from dalsegno.integrations.vllm.direct.worker import DirectWorker

    name = "_begin_load"
    usual = vars(DirectWorker)[name]

    def begin(self: Any, job: Any) -> Any:
        load = usual(self, job)
        time.sleep(KILL_AFTER_S)
        os.kill(os.getpid(), signal.SIGKILL)
        return load

    setattr(DirectWorker, name, begin)


def gpu_facts() -> dict[str, Any]:
    """Returns the facts of the GPU as Dalsegno's worker uses it; nothing without such a worker."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

    if not has_kv_transfer_group():
        return {}
    worker = vars(get_kv_transfer_group()).get("_worker")
    memory = vars(worker).get("_memory") if worker is not None else None
    gpu = vars(memory).get("_gpu") if memory is not None else None
    if gpu is None:
        return {}
    return {name: str(one) if name == "refusals" else one for name, one in gpu.facts().items()}


def most_tokens(core: Any) -> int:
    """Returns how many tokens a request may have, with its answer."""
    return int(core.vllm_config.model_config.max_model_len)


def cached(core: Any, n: int) -> dict[str, str]:
    """Returns what identifies the KV cache of the only running request.

    Args:
        core: vLLM's engine core.
        n: Tokens of its prompt; the full blocks before its last token are read.

    Returns:
        `digest`, 16 hexadecimal digits that depend on the bytes of each layer and block, in order;
        and `sample`, the first bytes of the keys of a middle block in a middle layer.
    """
    (request,) = core.scheduler.requests
    (pages,) = core.scheduler.kv_cache_manager.get_block_ids(request)
    pages = pages[: (n - 1) // core.vllm_config.cache_config.block_size]
    count = core.vllm_config.cache_config.num_gpu_blocks
    total, sample = hashlib.sha256(), ""
    layers = core.vllm_config.compilation_config.static_forward_context
    for at, name in enumerate(sorted(layers)):
        found = _pages(layers[name].kv_cache, pages, count)
        total.update(f"{name} {_sum(found)}".encode())
        if at == len(layers) // 2:
            middle = found[len(pages) // 2].flatten()[:SAMPLE_VALUES]
            sample = _hex(middle)
    return {"digest": total.hexdigest()[:16], "sample": sample}


def _hex(values: Any) -> str:
    """Returns the bytes of a tensor in hexadecimal digits."""
    import torch

    return bytes(values.cpu().contiguous().view(torch.uint8).numpy()).hex()


def _pages(cache: Any, pages: list[int], count: int) -> Any:
    """Returns the pages of a layer, contiguous, with their order as the first dimension.

    Args:
        cache: The tensor of the layer; one of its first two dimensions counts pages.
        pages: The pages, in the order of the prompt.
        count: How many pages the cache has.
    """
    import torch

    at = list(cache.shape[:2]).index(count)
    chosen = torch.tensor(pages, device=cache.device)
    return cache.index_select(at, chosen).movedim(at, 0).contiguous()


def _sum(found: Any) -> int:
    """Returns a weighted sum of the bytes of a tensor, modulo 2**64."""
    import torch

    words = found.view(-1).view(torch.int64)
    weights = torch.arange(1, 2 * words.numel(), 2, device=words.device)
    return int((words * weights).sum())
