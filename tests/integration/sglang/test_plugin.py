"""The plugin: what it hooks is there, and when backends forget what was stored before."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

pytest.importorskip("sglang")

from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.managers.io_struct import CheckWeightsReqInput
from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager
from sglang.srt.plugins.hook_registry import HookRegistry

from dalsegno.integrations.sglang import plugin

pytestmark = pytest.mark.engine


class Backend:
    """Counts how often it was renewed."""

    renewed = 0

    def renew(self) -> None:
        self.renewed += 1


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Backend:
    """A backend of a process that has seen nothing yet, with the hooks in place."""
    plugin.register()
    HookRegistry.apply_hooks()
    state = plugin._State()
    state.registered = True
    monkeypatch.setattr(plugin, "_state", state)
    one = Backend()
    plugin.watch(one)
    return one


def refused(name: str) -> None:
    """Calls an update of SGLang's on an object that can carry out none."""
    with pytest.raises(AttributeError):
        getattr(SchedulerWeightUpdaterManager, name)(object(), None)


def empty() -> None:
    """Empties caches that are none."""
    HiCacheController.reset(MagicMock(enable_storage=False))


def test_sglang_has_every_function_that_the_plugin_hooks(backend: Backend) -> None:
    ours = {
        target
        for target, hooks in HookRegistry._hooks.items()
        if any(hook.__module__ == plugin.__name__ for _, hook, _ in hooks)
    }
    assert len(ours) == 3 + len(plugin._UPDATES)
    assert ours <= HookRegistry._patched


@pytest.mark.parametrize("name", plugin._UPDATES)
def test_backends_forget_after_an_update_that_failed(backend: Backend, name: str) -> None:
    refused(name)
    assert backend.renewed == 1


@pytest.mark.parametrize(
    ("action", "renewed"), [("checksum", 0), ("compare", 0), ("snapshot", 0), ("reset_tensors", 1)]
)
def test_a_check_that_may_fill_the_weights_is_an_update(
    backend: Backend, action: str, renewed: int
) -> None:
    manager = MagicMock(_select_runners=MagicMock(return_value=[]))
    SchedulerWeightUpdaterManager.check_weights(manager, CheckWeightsReqInput(action=action))
    assert backend.renewed == renewed


def test_a_backend_attached_after_an_update_forgets_immediately(backend: Backend) -> None:
    before, after = Backend(), Backend()
    plugin.watch(before)
    assert before.renewed == 0
    refused("update_weights_from_tensor")
    plugin.watch(after)
    assert (before.renewed, after.renewed) == (1, 1)


def test_backends_forget_again_when_caches_are_emptied_after_an_update(
    backend: Backend,
) -> None:
    empty()
    assert backend.renewed == 0, "caches are emptied for other reasons, too"
    refused("update_weights_from_disk")
    empty()
    assert backend.renewed == 2
    empty()
    assert backend.renewed == 2
