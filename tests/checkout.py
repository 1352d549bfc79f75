"""The checkout that the tests run in, and its tools as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]


def load_tool(name: str) -> ModuleType:
    """Imports `tools/NAME.py`, which is in no package, and may import others of that folder."""
    if (folder := str(ROOT / "tools")) not in sys.path:
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # A dataclass looks up its module by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
