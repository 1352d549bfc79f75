"""The list of vLLM's doors (tools/vllm_doors.py), on sources made for the test."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.checkout import load_tool


def test_the_tool_follows_calls_and_names_of_methods(tmp_path: Path) -> None:
    tool = load_tool("vllm_doors")
    folder = tmp_path / "vllm" / "v1" / "worker"
    folder.mkdir(parents=True)
    (folder / "new.py").write_text(
        "class W:\n"
        "    def refresh(self): self.model.load_weights([])\n"
        "    def _refresh_all(self): self.refresh()\n"
        "    def step(self): self.executor.collective_rpc('execute_model')\n"
        "    def rest(self): self.executor.collective_rpc('sleep')\n"
        "    def call(self, name): self.executor.collective_rpc(name)\n"
        "    def pause(self): time.sleep(1)\n"
    )
    found = [door.rpartition(".")[2] for door in tool.find(tmp_path / "vllm")]
    assert found == ["load_weights", "_refresh_all", "call", "refresh", "rest"]


@pytest.mark.parametrize(
    "text", ["__version__ = version = '0.28.0'\n", "__version__ = version = '0.28.1.dev3+cpu'\n"]
)
def test_the_version_of_a_source_tree_is_read(text: str, tmp_path: Path) -> None:
    tool, root = load_tool("vllm_doors"), tmp_path / "vllm"
    root.mkdir()
    with pytest.raises(ValueError, match="does not name its version"):
        tool.version_of(root)
    (root / "_version.py").write_text(text)
    assert tool.version_of(root) == "0.28"
