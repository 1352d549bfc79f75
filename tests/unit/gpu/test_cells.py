"""What a cell leaves in `/dev/shm`, and what is others'."""

from __future__ import annotations

import mmap
import secrets
import time
from pathlib import Path
from typing import Any

from tests.checkout import load_tool

cells = load_tool("gpu/cells")


def test_files_that_others_use_are_neither_counted_nor_removed(tmp_path: Path) -> None:
    """Parts of a running engine find its file by its name."""
    name = f"vllm_offload_dalsegno-test-{secrets.token_hex(4)}"
    paths = {kind: cells.SHARED_MEMORY / f"{name}-{kind}.mmap" for kind in ("open", "mapped")}
    paths["left"] = cells.SHARED_MEMORY / f"{name}-left.mmap"
    paths["other"] = cells.SHARED_MEMORY / f"dalsegno-test-{secrets.token_hex(4)}"
    held: list[Any] = []

    def run(_: Any) -> dict[str, Any]:
        for path in paths.values():
            path.write_bytes(bytes(4096))
        held.append(paths["open"].open("rb"))
        with paths["mapped"].open("r+b") as file:
            held.append(mmap.mmap(file.fileno(), 4096))
        return {}

    session = cells.Session(tmp_path / "out", tmp_path / "scratch", time.monotonic() + 60)
    try:
        (record,) = cells.run_part("part", [cells.Cell("one", run, 1.0)], session)
        ours = [one for one in record["left_in_shared_memory"] if "dalsegno-test" in one]
        assert ours == sorted(f"{paths[kind].name} 4096" for kind in ("left", "other"))
        assert [kind for kind, path in paths.items() if path.exists()] == [
            "open",
            "mapped",
            "other",
        ]
    finally:
        for one in held:
            one.close()
        for path in paths.values():
            path.unlink(missing_ok=True)
