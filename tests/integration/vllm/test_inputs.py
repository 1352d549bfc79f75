"""Inputs of requests: a stored block is found only for the content it was computed from.

The identifiers of media are vLLM's or the client's. In these tests they agree while the contents
differ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vllm")

import torch
from tests.integration.vllm import tiers
from tests.integration.vllm.tiers import BLOCK_TOKENS, HIT, MISS, Primary, Request, counted, keys
from vllm.multimodal.inputs import (
    MultiModalFeatureSpec,
    MultiModalFieldElem,
    MultiModalKwargsItem,
    MultiModalSharedField,
    PlaceholderRange,
)
from vllm.v1.engine import EngineCoreRequest

from dalsegno.integrations.vllm import inputs
from dalsegno.integrations.vllm.connector import DalsegnoConnector
from dalsegno.integrations.vllm.tier import DalsegnoTier

pytestmark = pytest.mark.engine
IMAGE = torch.arange(48, dtype=torch.float32).reshape(3, 4, 4)
NAME = "0123456789abcdef" * 4


def item(**values: Any) -> MultiModalKwargsItem:
    """A processed medium."""
    field = MultiModalSharedField(batch_size=1)
    return MultiModalKwargsItem(
        {name: MultiModalFieldElem(data=value, field=field) for name, value in values.items()}
    )


def medium(
    data: Any, offset: int = 10, length: int = 20, modality: str = "image", is_embed: Any = None
) -> MultiModalFeatureSpec:
    """A medium of a request, always under the same identifier."""
    place = PlaceholderRange(offset=offset, length=length, is_embed=is_embed)
    return MultiModalFeatureSpec(
        data=data, modality=modality, identifier=NAME, mm_position=place, mm_hash=NAME
    )


def request(name: str = "r", *media: MultiModalFeatureSpec, **changes: Any) -> Any:
    """As much of vLLM's request as is examined."""
    values = {
        "request_id": name,
        "mm_features": list(media),
        "lora_request": None,
        "prompt_embeds": None,
        "prompt_is_token_ids": None,
        "pooling_params": None,
        "resumable": False,
    }
    return SimpleNamespace(**{**values, **changes})


def model(cache: str = "lru", **changes: Any) -> Any:
    """vLLM's configuration of a model."""
    multimodal = SimpleNamespace(mm_processor_cache_type=cache)
    return SimpleNamespace(
        **{"is_encoder_decoder": False, "multimodal_config": multimodal, **changes}
    )


class Front:
    """A connector before a tier, without vLLM's scheduler."""

    def __init__(self, tier: DalsegnoTier, primary: Primary) -> None:
        self.tier, self.primary = tier, primary
        scheduler = SimpleNamespace(
            manager=SimpleNamespace(secondary_tiers=[tier]), on_new_request=lambda _: None
        )
        self._connector = DalsegnoConnector.__new__(DalsegnoConnector)
        self._connector.connector_scheduler = scheduler
        self._connector._vllm_config = SimpleNamespace(model_config=model())

    def ask(self, of: list[Any], asked: Any) -> Request:
        """Announces a request, as vLLM's scheduler does."""
        self._connector.on_new_request(asked)
        ours = Request(self.tier, asked.request_id, of)
        ours.begin()
        return ours


@pytest.fixture
def front(make_tier: Callable[..., DalsegnoTier], primary: Primary) -> Front:
    return Front(make_tier(), primary)


OTHERS = {
    "one pixel": item(pixels=IMAGE + torch.eye(4)),
    "the shape": item(pixels=IMAGE.reshape(3, 2, 8)),
    "the dtype": item(pixels=IMAGE.view(torch.int32)),
    "the name of a tensor": item(values=IMAGE),
    "another tensor": item(pixels=IMAGE, grid=torch.tensor([1, 4, 4])),
    "an array": item(pixels=IMAGE.numpy()),
    "a list": item(pixels=[IMAGE]),
}


@pytest.mark.parametrize("what", OTHERS)
def test_media_with_one_identifier_and_other_content_share_no_block(
    what: str, front: Front
) -> None:
    ours = keys(3)
    front.ask(ours, request("a", medium(item(pixels=IMAGE)))).keep(front.primary)
    same = front.ask(ours, request("b", medium(item(pixels=IMAGE.clone()))))
    assert same.lookup_all() == [HIT] * 3
    other = front.ask(ours, request("c", medium(OTHERS[what])))
    assert other.lookup_all() == [MISS] * 3


@pytest.mark.parametrize(
    "changes",
    [
        {"offset": 11},
        {"length": 21},
        {"modality": "video"},
        {"is_embed": torch.ones(20, dtype=torch.bool)},
    ],
)
def test_the_place_and_kind_of_media_count(changes: dict[str, Any], front: Front) -> None:
    ours = keys(2)
    front.ask(ours, request("a", medium(item(pixels=IMAGE)))).keep(front.primary)
    other = front.ask(ours, request("b", medium(item(pixels=IMAGE), **changes)))
    assert other.lookup_all() == [MISS] * 2


def test_a_block_depends_on_the_media_that_begin_before_its_end(front: Front) -> None:
    """The next turn of a chat adds an image, and its beginning is found."""
    ours = keys(4)
    first = medium(item(pixels=IMAGE), offset=BLOCK_TOKENS + 5)
    second = medium(item(pixels=IMAGE * 2), offset=2 * BLOCK_TOKENS)
    front.ask(ours, request("a", first)).keep(front.primary)
    more, none = front.ask(ours, request("b", first, second)), front.ask(ours, request("text"))
    if not tiers.HAS_POSITIONS:
        # Then each block of a request depends on all of its media.
        assert {*more.lookup_all(), *none.lookup_all()} == {MISS}
        return
    assert more.lookup_all() == [HIT, HIT, MISS, MISS]
    assert none.lookup_all() == [HIT, MISS, MISS, MISS]


def test_blocks_of_media_are_loaded_under_the_names_they_were_stored_with(front: Front) -> None:
    ours, rows = keys(3), [9, 8, 7]
    front.ask(ours, request("a", medium(item(pixels=IMAGE)))).keep(front.primary)
    again = front.ask(ours, request("b", medium(item(pixels=IMAGE))))
    again.load(2, rows=rows)
    assert tiers.finished(front.tier)[0].success
    assert front.primary.holds(rows, ours)
    # Another image under the same identifier: its job fails, so vLLM computes the blocks.
    other = front.ask(ours, request("c", medium(item(pixels=IMAGE + 1))))
    other.load(3, rows=[4, 5, 6])
    assert not tiers.finished(front.tier)[0].success


REFUSED = {
    "a LoRA adapter": request(lora_request=object()),
    "embeddings": request(prompt_embeds=IMAGE),
    "mixed embeddings": request(prompt_is_token_ids=[True]),
    "a session": request(resumable=True),
    "token types": request(pooling_params=SimpleNamespace(extra_kwargs={"token_types": [1]})),
    "media of which vLLM has the name only": request("r", medium(None)),
    "media without tensors": request("r", medium(MultiModalKwargsItem())),
    "a tensor that was left out": request("r", medium(item(pixels=IMAGE, grid=None))),
    "an address": request("r", medium(item(address=4096, monotonic_id=7))),
    "an object": request("r", medium(item(pixels=object()))),
    "an array of objects": request("r", medium(item(pixels=np.array([object()])))),
    "a device": request("r", medium(item(pixels=torch.empty(3, device="meta")))),
}


@pytest.mark.parametrize("what", REFUSED)
def test_inputs_of_unknown_content_are_neither_stored_nor_loaded(what: str, front: Front) -> None:
    ours, new = keys(2), keys(1, prompt="b")
    front.ask(ours, request("first")).keep(front.primary)
    assert front.ask(ours, REFUSED[what]).lookup_all() == [MISS, MISS]
    asked = SimpleNamespace(**{**vars(REFUSED[what]), "request_id": "s"})
    front.ask(new, asked).store(7, rows=[4])
    assert not tiers.finished(front.tier)[0].success
    assert front.ask(new, request("last")).lookup_all() == [MISS]
    assert counted(front.tier.get_stats())["bypassed_requests"] == 2


@pytest.mark.parametrize(
    "config", [None, model(is_encoder_decoder=True), model("shm"), SimpleNamespace()]
)
def test_media_are_refused_where_the_model_or_its_cache_hides_them(config: Any) -> None:
    asked = request("r", medium(item(pixels=IMAGE)))
    assert inputs.examine(asked, model()) is not None
    if config is not None and not vars(config):
        config.is_encoder_decoder = True
    with pytest.raises(inputs.RefusedError, match="media"):
        inputs.examine(asked, config)


def test_text_keeps_the_names_of_vllm() -> None:
    ours = keys(2)
    assert inputs.examine(request(), model()) is None
    assert inputs.names(None, ours, {}) == [key[:32] for key in ours]


def test_a_request_that_nobody_examined_is_refused_once_requests_are(front: Front) -> None:
    ours = keys(1)
    front.ask(ours, request("a")).keep(front.primary)
    assert Request(front.tier, "stray", ours).lookup_all() == [MISS]
    assert front.ask(ours, request("b")).lookup_all() == [HIT]


def test_without_positions_a_block_depends_on_all_media() -> None:
    """vLLM before 0.31 does not say where a block ends."""
    one = inputs.Content([medium(item(pixels=IMAGE), offset=500)])
    name = keys(1)[0][:32]
    assert one.name(name, 100) == name
    assert one.name(name, None) == one.name(name, 501) != name


def test_every_field_of_a_request_is_known() -> None:
    """A later vLLM may add an input that its block hashes do not cover."""
    fields = set(EngineCoreRequest.__struct_fields__)
    known = set(inputs.FIELDS)
    assert not sorted(fields - known), "find out what it does to the KV cache, and add it"


def test_hashing_distinguishes_nested_values() -> None:
    values = [[1, 2], [[1], 2], [1, [2]], ["1", 2], {"a": 1}, {"a": "1"}, b"12", "12", [1.0, 2]]
    made = {
        inputs.Content([medium(item(pixels=IMAGE, x=value))]).name(b"\0" * 32, None)
        for value in values
    }
    assert len(made) == len(values)


def test_an_item_that_vllm_returns_again_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    image, fed, feed = item(pixels=IMAGE), list[Any](), inputs._feed

    def count(state: Any, value: Any) -> None:
        fed.append(value)
        feed(state, value)

    monkeypatch.setattr(inputs, "_feed", count)
    first, again = (inputs.Content([medium(image)]).name(b"\0" * 32, None) for _ in range(2))
    assert first == again
    assert sum(isinstance(value, torch.Tensor) for value in fed) == 1
    del image
    assert not any(reference() is None for reference, _ in inputs._digests.values())


def test_dataclass_fields_of_media_are_those_that_are_hashed() -> None:
    """A later vLLM may add a field to media, on which the KV cache depends."""
    assert {one.name for one in dataclasses.fields(MultiModalFeatureSpec)} <= {
        *("data", "modality", "identifier", "mm_position", "mm_hash")
    }
    assert {one.name for one in dataclasses.fields(PlaceholderRange)} <= {
        *("offset", "length", "is_embed")
    }
