"""LMCache's choice between loading and computing, as LMCache 0.5.7 asks for it.

    lmcache server … --kv-load-policy dalsegno.integrations.lmcache:DalsegnoLoadPolicy

1. `should_load` never raises and never waits: a lookup that cannot be decided loads.
"""

from __future__ import annotations

from typing import Any

from lmcache.logging import init_logger
from lmcache.v1.multiprocess.kv_load_policy import KVLoadPolicy

from dalsegno.integrations.common.trouble import Trouble
from dalsegno.integrations.lmcache import costs

logger = init_logger("lmcache.dalsegno")

# A request that must not load, as LMCache's own policy knows it.
SKIP = "lmcache.skip_load"


class DalsegnoLoadPolicy(KVLoadPolicy):  # type: ignore[misc]
    """Declines lookups that Dalsegno's adapters would serve later than the engine computes them."""

    def __init__(self, configs: Any) -> None:
        """Starts.

        Args:
            configs: LMCache's `--runtime-plugin-config`; the settings are those of the adapter.
        """
        super().__init__(configs)
        self._log = Trouble(logger)

    def should_load(self, ctx: Any) -> bool:
        """Returns whether a lookup loads.

        Args:
            ctx: LMCache's `KVLoadContext`.
        """
        try:
            given = ctx.request_configs or {}
            if given.get(SKIP, False):
                return False
            tokens = int(ctx.num_lookup_tokens)
            computed = min(tokens, int(given.get(costs.COMPUTED, 0) or 0))
            asked = costs.Asked(ctx.model_name, tokens, computed, int(ctx.chunk_size))
            # Each adapter is asked, as each must know that it is used.
            return any([one.should_load(asked) for one in list(costs.opened)] or [True])
        except Exception as error:  # noqa: BLE001 - LMCache's lookups go on
            self._log.log("should_load", error)
            return True
