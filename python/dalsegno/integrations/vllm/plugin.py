"""What vLLM loads when it starts, by the entry point `vllm.general_plugins`."""

from __future__ import annotations

import contextlib


def register() -> None:
    """Lets the children of the process know when its engine began (`file_times.py`).

    vLLM calls it in every process of every engine, whether or not that has a store: never raises.
    """
    with contextlib.suppress(Exception):
        from dalsegno.integrations.common import file_times

        file_times.announce_start()
