"""The prefix of a call: the pages before its keys, which SGLang passes as `prefix_keys`.

SGLang serves a shared prefix from its own memory, so no call asks for its pages. Only `prefix_keys`
says that they are in use, and without it the store evicts them as idle.

1. SGLang passes them if `hicache_storage_pass_prefix_keys` is true in the extra configuration. It
   removes that key before it builds a backend, so the backend sees only what is passed.
2. In a store `prefix_keys` adjoins the keys of the call. It is None if the setting is off, and an
   empty list at the start of a prompt if it is on.
3. In a lookup or load it leaves out the last matched node, so it does not adjoin the keys of the
   call. It is None also at the start of a prompt.
"""

from __future__ import annotations

import logging
from typing import Any

from dalsegno.integrations.sglang.spaces import block_hash

_OFF = (
    "SGLang passes no prefix keys, so Dalsegno cannot see which prefixes are in use, and may evict "
    "a shared system prompt before the prompts behind it. Set "
    '"hicache_storage_pass_prefix_keys": true in --hicache-storage-backend-extra-config.'
)


def of_lookup(extra_info: Any) -> list[bytes]:
    """Returns the leading pages of the prompt that SGLang has already; not always all of them."""
    keys = extra_info.prefix_keys if extra_info is not None else None
    return [block_hash(key) for key in keys or ()]


class StorePrefix:
    """The prefixes of the stores of one backend. SGLang stores from one thread."""

    def __init__(self, logger: logging.Logger) -> None:
        """Starts before the first store.

        Args:
            logger: Where the warning goes.
        """
        self._logger = logger
        self._is_checked = False

    def before(self, extra_info: Any) -> bytes | None:
        """Returns the page right before those of a store, if SGLang passes it.

        The first call that has `extra_info` logs a warning if the setting is off.
        """
        if extra_info is None:
            return None
        keys = extra_info.prefix_keys
        if not self._is_checked:
            self._is_checked = True
            if keys is None:
                self._logger.warning(_OFF)
        return block_hash(keys[-1]) if keys else None
