"""What vLLM loads when it starts, by the entry point `vllm.general_plugins`."""

from __future__ import annotations

from dalsegno.integrations.common import file_times


def register() -> None:
    """Lets the engine's process know when its front end began (`file_times.py`)."""
    file_times.announce_start()
