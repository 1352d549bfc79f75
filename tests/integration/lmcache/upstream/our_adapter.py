"""Lets LMCache's own tests of its `MockL2Adapter` run on ours: `pytest -p` with this file's name.

They are written against LMCache's interface and take an adapter from a fixture or by the name of
its class, so it is enough to put ours under that name before they are imported.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from typing import Any

from lmcache.v1.distributed.l2_adapters import mock_l2_adapter
from lmcache.v1.platform import torch_dev
from lmcache.v1.platform.devices.cpu.stub_cpu_device import StubCPUDevice

from dalsegno.integrations.lmcache import DalsegnoL2Adapter


class MockL2Adapter(DalsegnoL2Adapter):
    """Our adapter over a store in a folder of its own, made as LMCache's tests make theirs."""

    def __init__(self, config: Any) -> None:
        """Opens a store; what the configuration says of sizes and speeds means nothing here."""
        del config
        self._folder = tempfile.mkdtemp(prefix="dalsegno-lmcache-")
        self._locks: Counter[Any] = Counter()
        settings = {"capacity": "64MiB", "segment": "8MiB", "staging": "16MiB"}
        super().__init__({"path": self._folder, "store": settings, "weights_fingerprint": "w"})

    def submit_lookup_and_lock_task(self, keys: list[Any], group_layout_descs: Any) -> int:
        """Notes what LMCache may take for locked, so that its tests see whether it unlocks it."""
        number = super().submit_lookup_and_lock_task(keys, group_layout_descs)
        found = self.query_lookup_and_lock_result(number)
        self._locks.update(found.gather(keys))
        self._found.add(number, found)
        return number

    def submit_unlock(self, keys: list[Any]) -> None:
        """Notes that the keys are not locked any more."""
        super().submit_unlock(keys)
        self._locks.subtract(keys)

    def debug_get_locked_key_count(self) -> int:
        """Asked by LMCache's tests of its controllers."""
        return sum(count > 0 for count in self._locks.values())

    def debug_get_stored_object_count(self) -> int:
        """Asked by LMCache's tests of its controllers."""
        return int(self.report_status()["stored_object_count"])

    def report_status(self) -> dict[str, Any]:
        """Counts under the names of LMCache's adapter, for which its tests of serializers ask."""
        status = super().report_status()
        return {**status, "stored_object_count": status["store"]["blocks"]}

    def debug_has_key(self, key: Any) -> bool:
        """Asked by LMCache's tests of its controllers."""
        number = super().submit_lookup_and_lock_task([key], {})
        return bool(self.query_lookup_and_lock_result(number).test(0))

    def close(self) -> None:
        """Closes the store and removes its folder."""
        super().close()
        shutil.rmtree(self._folder, ignore_errors=True)


mock_l2_adapter.MockL2Adapter = MockL2Adapter
# Their tests of the controllers skip themselves where LMCache finds no device; on its stand-in for
# one, with which `lmcache server` runs on the CPU, they run.
if isinstance(torch_dev, StubCPUDevice):
    StubCPUDevice.is_available = lambda self: True
