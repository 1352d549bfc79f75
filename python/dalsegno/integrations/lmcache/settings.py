"""The settings of the LMCache integration, as `adapter_params` gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from dalsegno import InvalidError
from dalsegno.integrations.common.settings import Check, StoreSettings, byte_count, count, text
from dalsegno.paths import local_path


def _model(name: str, value: object) -> str:
    """Checks the path of a model; empty means that none is given."""
    given = text(name, value, 4096)
    return str(local_path(given, name)) if given else ""


@dataclass(frozen=True)
class AdapterSettings(StoreSettings):
    """The settings of one adapter.

    Attributes:
        max_load_tasks: Load tasks under way; one more is refused at once and is a miss.
        max_store_tasks: Store tasks under way; one more is refused at once and fails.
        max_store_bytes: Bytes being written, which LMCache cannot evict from its memory meanwhile;
            3/4 of that memory if not given. A larger task is written in parts.
        model: Folder of the only model that is served, or its only file. Its weights are hashed at
            start, so that other weights under the same name never meet these objects.
        profile: For `DalsegnoLoadPolicy`, what says how fast the engine computes: the file of a
            profile, which ends in `.json`, or the name of the model.
    """

    max_load_tasks: int = 64
    max_store_tasks: int = 64
    max_store_bytes: int | None = None
    model: str = ""
    profile: str = ""

    CHECKS: ClassVar[Mapping[str, Check]] = {
        **StoreSettings.CHECKS,
        "max_load_tasks": count,
        "max_store_tasks": count,
        "max_store_bytes": byte_count,
        "model": _model,
        "profile": lambda name, value: text(name, value, 4096),
    }

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> AdapterSettings:
        """Checks what a configuration gives.

        Args:
            given: What stands under `adapter_params`.

        Raises:
            InvalidError: A key is unknown or missing, or a value is not allowed.
        """
        settings = cls.read(given, "adapter_params", 'DalsegnoL2Adapter: "adapter_params"')
        if bool(settings.model) == bool(settings.weights_fingerprint):
            raise InvalidError(
                'adapter_params needs either "model", the folder of the only model that is served, '
                'or "weights_fingerprint", a text of yours that changes whenever weights do: '
                "LMCache's keys do not contain the weights behind a model's name"
            )
        return settings
