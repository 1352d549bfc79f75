"""Which inputs of a request a block hash of vLLM commits to, and what is done about the others.

A block hash covers token ids, `cache_salt`, and for images, videos and audio an *identifier*. The
identifier is a hash of the content only sometimes: vLLM takes it from the client
(`multi_modal_uuids`), from the metadata of an image (its EXIF ImageID), or from a counter. So it
names the content within one engine at best, and a store outlives engines.

| input | what stands for it in the name of a stored block |
|---|---|
| token ids, `cache_salt` | vLLM's block hash |
| images, videos, audio | the block hash, and a hash of what the model gets: `Content` |
| prompt embeddings, LoRA adapters, sessions whose inputs follow later | not stored, not loaded |

1. Media are known by their processed tensors, so the processor and its settings count too. A block
   commits to all media that begin before its end, with their places.
2. What cannot be hashed here is refused: tensors on a device, media that are elsewhere (the `shm`
   cache of processors, encoders in other processes), objects of unknown types.
3. Text-only requests keep vLLM's own hashes.
"""

from __future__ import annotations

import functools
import hashlib
import weakref
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from vllm.logger import init_logger

from dalsegno.integrations.vllm import compat

logger = init_logger("vllm.dalsegno")

# What is known of vLLM's `EngineCoreRequest`, 0.28 to 0.33: what each field does to the KV cache.
FIELDS: dict[str, str] = {
    "prompt_token_ids": "in the block hash",
    "cache_salt": "in the block hash",
    "mm_features": "Content",
    "lora_request": "refused",
    "prompt_embeds": "refused",
    "prompt_is_token_ids": "refused",
    "resumable": "refused",
    "pooling_params": "refused with extra_kwargs, such as token types; else no effect",
    "sampling_params": "no effect on the KV cache of given tokens",
    "abort_immediately": "no effect",
    "arrival_time": "no effect",
    "client_index": "no effect",
    "current_wave": "no effect",
    "data_parallel_rank": "no effect",
    "external_req_id": "no effect",
    "kv_hints": "no effect",
    "priority": "no effect",
    "reasoning_ended": "no effect",
    "reasoning_parser_kwargs": "no effect",
    "request_id": "no effect",
    "session_id": "no effect",
    "trace_headers": "no effect",
}
_MARK = "_dalsegno_inputs"
_MOST_KINDS = 32
_DOMAIN = b"dalsegno vllm content 1"


class RefusedError(Exception):
    """An input whose content is unknown; the message is its kind, a word for logs."""


class Content:
    """The media of a request, and how they change the names of its blocks."""

    __slots__ = ("_offsets", "_prefixes")

    def __init__(self, features: Sequence[Any]) -> None:
        """Hashes the media.

        Args:
            features: vLLM's `MultiModalFeatureSpec`s.

        Raises:
            RefusedError: The content of one of them is unknown.
        """
        self._offsets: list[int] = []
        self._prefixes: list[bytes] = []
        chain = hashlib.sha256(_DOMAIN).digest()
        for feature in sorted(features, key=lambda one: int(one.mm_position.offset)):
            place = feature.mm_position
            state = hashlib.sha256(chain)
            mask = "all" if place.is_embed is None else place.is_embed
            for part in (feature.modality, place.offset, place.length, mask):
                _feed(state, part)
            state.update(_item_digest(feature.data))
            chain = state.digest()
            self._offsets.append(int(place.offset))
            self._prefixes.append(chain)

    def name(self, one: bytes, end: int | None) -> bytes:
        """Returns the name of a block in the store: 32 bytes.

        Args:
            one: vLLM's block hash.
            end: Where the block ends in the prompt, in tokens; None if vLLM does not say.
        """
        count = len(self._offsets) if end is None else bisect_left(self._offsets, end)
        if count == 0:
            return one
        return hashlib.sha256(_DOMAIN + self._prefixes[count - 1] + one).digest()


def examine(request: Any, model_config: Any) -> Content | None:
    """Returns what a request's blocks depend on besides vLLM's hashes; None if nothing.

    Args:
        request: vLLM's request, when it is new.
        model_config: vLLM's configuration of the model.

    Raises:
        RefusedError: The hashes do not commit to the inputs, so nothing may be stored or loaded.
    """
    if getattr(request, "lora_request", None) is not None:
        raise RefusedError("a LoRA adapter")
    if (
        getattr(request, "prompt_embeds", None) is not None
        or getattr(request, "prompt_is_token_ids", None) is not None
    ):
        raise RefusedError("prompt embeddings")
    if getattr(request, "resumable", False):
        raise RefusedError("a session whose inputs follow later")
    if getattr(getattr(request, "pooling_params", None), "extra_kwargs", None):
        raise RefusedError("pooling parameters of a model")
    features = getattr(request, "mm_features", None)
    if not features:
        return None
    if getattr(model_config, "is_encoder_decoder", True):
        raise RefusedError("media of an encoder-decoder model")
    multimodal = getattr(model_config, "multimodal_config", None)
    if getattr(multimodal, "mm_processor_cache_type", "lru") != "lru":
        raise RefusedError("media in a shared memory cache")
    return Content(features)


# Items that vLLM's cache returns again and again are hashed once.
_digests: dict[int, tuple[weakref.ref[Any], bytes]] = {}


def _item_digest(item: Any) -> bytes:
    """Returns the hash of the tensors that the model gets for one medium."""
    if not isinstance(item, Mapping) or not item:
        raise RefusedError("media whose content is elsewhere")
    key = id(item)
    known = _digests.get(key)
    if known is not None and known[0]() is item:
        return known[1]
    state, values = hashlib.sha256(), {name: element.data for name, element in item.items()}
    if not _has_tensor(values):
        # A handle, such as an address in shared memory.
        raise RefusedError("media whose content is elsewhere")
    _feed(state, values)
    digest = state.digest()
    _digests[key] = (weakref.ref(item, lambda _: _digests.pop(key, None)), digest)
    return digest


def _has_tensor(value: Any) -> bool:
    """Returns whether a value holds a tensor."""
    if isinstance(value, Mapping):
        return any(_has_tensor(one) for one in value.values())
    if isinstance(value, (list, tuple)):
        return any(_has_tensor(one) for one in value)
    return isinstance(value, (torch.Tensor, np.ndarray))


def _feed(state: Any, value: Any) -> None:
    """Adds a value to a hash, with its type and size in front, so that no two are alike.

    None is refused: vLLM leaves out tensors that it has elsewhere.
    """
    if isinstance(value, (bool, int, float, str)):
        _feed_bytes(state, type(value).__name__, repr(value).encode())
    elif isinstance(value, bytes):
        _feed_bytes(state, "bytes", value)
    elif isinstance(value, torch.Tensor):
        if value.device.type != "cpu" or value.layout is not torch.strided:
            raise RefusedError("media on a device")
        flat = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        _feed_bytes(state, f"tensor {value.dtype} {tuple(value.shape)}", flat.data)
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        _feed_bytes(state, f"array {value.dtype.str} {value.shape}", data.data)
    elif isinstance(value, (list, tuple)):
        _feed_bytes(state, "list", str(len(value)).encode())
        for one in value:
            _feed(state, one)
    elif isinstance(value, Mapping):
        _feed_bytes(state, "map", str(len(value)).encode())
        for name in sorted(value):
            _feed(state, str(name))
            _feed(state, value[name])
    else:
        raise RefusedError(f"media with a {type(value).__name__}")


def _feed_bytes(state: Any, kind: str, data: bytes | memoryview) -> None:
    """Adds bytes to a hash, with their kind and size in front."""
    size = data.nbytes if isinstance(data, memoryview) else len(data)
    state.update(f"{kind}:{size}:".encode())
    state.update(data)


def watch_requests(connector: type, tier_class: type) -> None:
    """Has a connector examine each new request before vLLM asks the tiers about it.

    Args:
        connector: vLLM's `OffloadingConnector`; it is changed once per process.
        tier_class: The class of tiers that get the result, by `admit` or `bypass`, and its length.
    """
    call: Callable[..., Any] = vars(connector)["on_new_request"]
    if getattr(call, _MARK, False):
        return

    @functools.wraps(call)
    def on_new_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        manager = getattr(getattr(self, "connector_scheduler", None), "manager", None)
        for tier in getattr(manager, "secondary_tiers", ()):
            if isinstance(tier, tier_class):
                _admit(tier, request, getattr(self, "_vllm_config", None))
        return call(self, request, *args, **kwargs)

    setattr(on_new_request, _MARK, True)
    connector.on_new_request = on_new_request  # type: ignore[attr-defined]


def warn_of_random_hashes() -> None:
    """Warns if no other process can find the blocks that this one stores."""
    if compat.hashes_are_random():
        logger.warning(
            "This version of vLLM hashes blocks with a random seed, so no other engine finds what "
            "this one stores, nor does this one after a restart. Set the variable PYTHONHASHSEED "
            "to the same number, such as 0, for every engine."
        )


def _admit(tier: Any, request: Any, vllm_config: Any) -> None:
    """Gives a tier what a request's blocks depend on. Never raises."""
    try:
        content = examine(request, getattr(vllm_config, "model_config", None))
    except Exception as error:  # noqa: BLE001 - what cannot be examined is refused
        tier.bypass(request.request_id, str(error))
    else:
        tier.admit(request.request_id, content)
    tier.adviser.expect(request.request_id, getattr(request, "num_tokens", 0))


class Refusals:
    """Which kinds of requests keep away from the store: each kind is logged once."""

    def __init__(self) -> None:
        """Starts with none."""
        self._kinds: set[str] = set()

    def note(self, kind: str) -> None:
        """Notes that a request is neither stored nor loaded."""
        if kind not in self._kinds and len(self._kinds) < _MOST_KINDS:
            self._kinds.add(kind)
            logger.info("Dalsegno neither stores nor loads blocks of requests with %s.", kind)


class Admissions:
    """What is known of requests that are about to come.

    Attributes:
        are_examined: Whether all requests are examined. One that was not is then refused.
    """

    def __init__(self) -> None:
        """Starts with requests that nobody examines, as those of a test are."""
        self._contents: dict[str, Content | None] = {}
        self._refused: set[str] = set()
        self.are_examined = False
        self._refusals = Refusals()

    def admit(self, request_id: str, content: Content | None) -> None:
        """Notes what a request's blocks depend on besides vLLM's hashes."""
        self.are_examined = True
        self._contents[request_id] = content

    def refuse(self, request_id: str, kind: str) -> None:
        """Notes that a request is neither stored nor loaded; logs each kind once."""
        self._refused.add(request_id)
        self._refusals.note(kind)

    def take(self, request_id: str) -> tuple[bool, Content | None]:
        """Returns whether a request is refused, and its media; forgets it."""
        is_known = request_id in self._contents
        content = self._contents.pop(request_id, None)
        refused = request_id in self._refused or (self.are_examined and not is_known)
        self._refused.discard(request_id)
        return refused, content


def names(content: Content | None, keys: Sequence[bytes], ends: Mapping[bytes, int]) -> list[bytes]:
    """Returns the names under which a store has some blocks.

    Args:
        content: The media of their request.
        keys: vLLM's offload keys.
        ends: Where each block ends in the prompt, in tokens, as far as vLLM says.
    """
    if content is None:
        return [key[: compat.HASH_BYTES] for key in keys]
    return [content.name(key[: compat.HASH_BYTES], ends.get(key)) for key in keys]
