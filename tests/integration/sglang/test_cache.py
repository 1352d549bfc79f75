"""Prompts through SGLang's tree, controller and host pool: what comes back, in every layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sglang")

from sglang.srt.mem_cache.hybrid_cache import hybrid_pool_assembler
from tests.integration.sglang.backend_rig import LOADS_ALL

from dalsegno.integrations.sglang.settings import CLASS, MODULE
from dalsegno_bench.sglang.rig import LAYOUTS, Geometry, Rig

pytestmark = pytest.mark.engine
PAGE_TOKENS = 16


def extra(path: Path, **more: Any) -> dict[str, Any]:
    """The whole extra configuration of SGLang's dynamic backend."""
    named = {"backend_name": "dalsegno", "module_path": MODULE, "class_name": CLASS}
    sizes = {"capacity": "64MiB", "weights_fingerprint": "w"}
    return {**named, **sizes, **LOADS_ALL, "path": str(path), **more}


def prompt(number: int, pages: int = 20) -> list[int]:
    """Tokens of a prompt; prompts of other numbers share none."""
    return [number * 10_000 + at for at in range(pages * PAGE_TOKENS)]


@pytest.fixture
def make_rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """Makes caches with our backend over one directory."""
    with ExitStack() as opened:

        def make(layout: str = "page_first", latent: int = 0, **more: Any) -> Rig:
            rig = Rig(Geometry(page_tokens=PAGE_TOKENS, layout=layout, latent=latent))
            opened.callback(rig.close)
            rig.attach("dynamic", extra(tmp_path / "store", **more))
            return rig

        yield make


@pytest.mark.parametrize("interface_v1", [1, 0])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_prompts_come_back_byte_for_byte(
    layout: str, interface_v1: int, make_rig: Callable[..., Rig]
) -> None:
    rig = make_rig(layout, interface_v1=interface_v1)
    digests = [rig.insert(prompt(number), seed=number) for number in range(3)]
    for number in range(3):
        rig.to_host(prompt(number))
        rig.to_storage(prompt(number))
    rig.flush()
    for number in (2, 0, 1):
        assert rig.prefetch(prompt(number)).tokens == 20 * PAGE_TOKENS
        assert rig.to_device(prompt(number)) == digests[number]
    counts = rig.backend.counts()
    assert (counts["stored_pages"], counts["loaded_pages"]) == (60, 60)
    assert not [name for name in counts if "errors" in name or "failed" in name]


@pytest.mark.parametrize("interface_v1", [1, 0])
@pytest.mark.parametrize("layout", ["page_first", "page_first_direct", "layer_first"])
def test_latent_vectors_come_back_byte_for_byte(
    layout: str, interface_v1: int, make_rig: Callable[..., Rig]
) -> None:
    """A model with MLA has one vector for each token, and no heads."""
    rig = make_rig(layout, latent=64, interface_v1=interface_v1)
    assert rig.controller.storage_config.is_mla_model
    digest = rig.insert(prompt(1), seed=1)
    rig.to_host(prompt(1))
    rig.to_storage(prompt(1))
    rig.flush()
    assert rig.prefetch(prompt(1)).tokens == 20 * PAGE_TOKENS
    assert rig.to_device(prompt(1)) == digest
    assert rig.backend.counts()["loaded_bytes"] == 20 * rig.geometry.page_bytes


def test_host_memory_that_processes_share_is_served_too(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SGLang's `"allocator": "shm"`."""
    monkeypatch.setattr(hybrid_pool_assembler, "_get_allocator_type", lambda: "shm")
    rig = make_rig()
    assert rig.host.fd is not None
    digest = rig.insert(prompt(1), seed=1)
    rig.to_host(prompt(1))
    rig.to_storage(prompt(1))
    rig.flush()
    assert rig.prefetch(prompt(1)).tokens == 20 * PAGE_TOKENS
    assert rig.to_device(prompt(1)) == digest


def test_a_new_process_finds_the_prefix_and_stores_only_what_is_new(
    make_rig: Callable[..., Rig],
) -> None:
    first = make_rig()
    digest = first.insert(prompt(1), seed=1)
    first.to_host(prompt(1))
    first.to_storage(prompt(1))
    first.close()

    second = make_rig()
    longer = prompt(1) + prompt(2)
    assert second.prefetch(longer).tokens == 20 * PAGE_TOKENS
    assert second.to_device(prompt(1)) == digest
    second.flush()
    second.insert(longer, seed=3)
    second.to_host(longer)
    second.to_storage(longer)
    counts = second.backend.counts()
    assert (counts["stored_pages"], counts["present_pages"]) == (20, 20)


def test_layouts_and_interfaces_never_share_a_page(make_rig: Callable[..., Rig]) -> None:
    """The same tokens have other bytes in another layout, of the same size."""
    for layout in LAYOUTS:
        for interface_v1 in (1, 0):
            rig = make_rig(layout, interface_v1=interface_v1)
            assert rig.prefetch(prompt(1)).tokens == 0, (layout, interface_v1)
            rig.insert(prompt(1), seed=1)
            rig.to_host(prompt(1))
            rig.to_storage(prompt(1))
            rig.close()


def test_a_backend_can_be_attached_and_detached_repeatedly(
    make_rig: Callable[..., Rig], tmp_path: Path
) -> None:
    rig = make_rig()
    digest = rig.insert(prompt(1), seed=1)
    rig.to_host(prompt(1))
    rig.to_storage(prompt(1))
    for _ in range(3):
        rig.detach()
        rig.attach("dynamic", extra(tmp_path / "store"))
        rig.flush()
        assert rig.prefetch(prompt(1)).tokens == 20 * PAGE_TOKENS
        assert rig.to_device(prompt(1)) == digest


def test_cleared_pages_are_gone(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    rig.insert(prompt(1), seed=1)
    rig.to_host(prompt(1))
    rig.to_storage(prompt(1))
    assert rig.controller.clear_storage_backend()
    rig.flush()
    assert rig.prefetch(prompt(1)).tokens == 0


def test_the_codec_changes_no_byte_and_finds_what_was_stored_without(
    make_rig: Callable[..., Rig],
) -> None:
    plain = make_rig()
    digests = [plain.insert(prompt(1), seed=1)]
    plain.to_host(prompt(1))
    plain.to_storage(prompt(1))
    plain.close()
    coded = make_rig(codec="zstd")
    digests.append(coded.insert(prompt(2), seed=2))
    coded.to_host(prompt(2))
    coded.to_storage(prompt(2))
    coded.flush()
    for number in (1, 2):
        assert coded.prefetch(prompt(number)).tokens == 20 * PAGE_TOKENS
        assert coded.to_device(prompt(number)) == digests[number - 1]


def test_a_wrong_configuration_is_refused_with_its_reason(tmp_path: Path) -> None:
    rig = Rig(Geometry(page_tokens=PAGE_TOKENS))
    for wrong, words in (
        ({"capcity": "1GiB"}, "did you mean 'capacity'"),
        ({"load_timeout_s": -1}, "load_timeout_s is -1"),
        ({"path": ""}, 'needs "path"'),
        ({"store": {"no_such": 1}}, "no_such"),
    ):
        with pytest.raises(RuntimeError, match=words):
            rig.attach("dynamic", {**extra(tmp_path / "store"), **wrong})
    rig.attach("dynamic", extra(tmp_path / "store"))
    rig.close()
