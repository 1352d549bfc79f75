"""Lists vLLM's doors: its functions that can change the weights of a running engine.

    python tools/vllm_doors.py SOURCE           # the folder `vllm` of a source tree or installation
    python tools/vllm_doors.py SOURCE --write   # also records them under the version of SOURCE

A door is a function that can be reached while an engine serves and that defines or calls, directly
or through other doors, one of the names in `TARGETS`: loading, reloading, updating and transferring
weights, `collective_rpc`, `apply_model`, sleeping and waking up. The list is recorded in
`tools/vllm_doors.json`. A test compares it with the installed vLLM.

1. Calls are followed by name. A name of a door is followed only if all functions of that name are
   doors, because `run` or `execute` would make everything a door.
2. A call that names the method of a worker (`collective_rpc("execute_model")`) is a call of that
   method.
3. The models' own `load_weights` is one door, listed once as `Model.load_weights`.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

TABLE = Path(__file__).with_suffix(".json")
TARGETS = re.compile(
    r"(re)?load_(weights|model)|(?!supports_|_check_)\w*update_\w*weights?\w*"
    r"|(?!supports_|_check_)\w*weights?_(update|transfer)\w*|\w*transfer_weights|receive_weights\w*"
    r"|reset_weights|update_config|checkpoint_restore|elastic_ep_execute|handle_ft_command"
    r"|apply_model|sleep|wake_up|collective_rpc"
)
# Methods of sets and of other things have these names, too: only their definitions count.
DEFINED = re.compile(r"discard")
# Functions of other processes, which reach the engine through a door, and caches of kernels.
REMOTE = re.compile(r"Trainer|WeightSyncClient|WeightCacheDaemon|_run_daemon|WarmupCache")
# Where vLLM serves; models and layers define `load_weights` hundreds of times.
FOLDERS = (
    "distributed/elastic_ep",
    "distributed/weight_transfer",
    "engine",
    "entrypoints",
    "model_executor/model_loader",
    "v1/engine",
    "v1/executor",
    "v1/worker",
)
# Calls whose first argument is the name of a method that runs elsewhere.
_BY_NAME = re.compile(r"collective_rpc\w*|_?call_utility\w*|_?run_workers\w*")
_CLOCKS = {"time", "asyncio"}
_VERSION = re.compile(r"^(?:__version__ = version = '|Version: )(\d+\.\d+)", re.MULTILINE)


@dataclass
class Function:
    """A function of vLLM.

    Attributes:
        place: Its file and qualified name.
        name: Its name alone.
        calls: Names that it calls.
    """

    place: str
    name: str
    calls: set[str] = field(default_factory=set)


class _Reader(ast.NodeVisitor):
    """Collects the functions of a file and the names that each calls."""

    def __init__(self, file: str) -> None:
        self.found: list[Function] = []
        self._file, self._scope = file, list[str]()
        self._open: list[Function] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Enters a class."""
        self._scope.append(node.name)
        self.generic_visit(node)
        self._scope.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Enters a function; what an inner function calls counts for the outer one."""
        if self._open:
            self.generic_visit(node)
            return
        place = f"{self._file}:{'.'.join([*self._scope, node.name])}"
        self._open.append(Function(place, node.name))
        self.generic_visit(node)
        self.found.append(self._open.pop())

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - the name that ast calls

    def visit_Call(self, node: ast.Call) -> None:
        """Notes the name of a call, or of the method that it names."""
        if self._open and (name := _called(node)):
            self._open[-1].calls.add(name)
        self.generic_visit(node)


def _called(node: ast.Call) -> str:
    """Returns the name that a call reaches, empty if it has none."""
    target = node.func
    if isinstance(target, ast.Name):
        name = target.id
    elif isinstance(target, ast.Attribute):
        if isinstance(target.value, ast.Name) and target.value.id in _CLOCKS:
            return ""
        name = target.attr
    else:
        return ""
    if _BY_NAME.fullmatch(name) and node.args:
        method = node.args[0]
        if isinstance(method, ast.Constant) and isinstance(method.value, str):
            return method.value
    return name


def _functions(root: Path) -> Iterator[Function]:
    """Yields the functions of vLLM's serving code."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            reader = _Reader(path.relative_to(root).as_posix())
            reader.visit(ast.parse(path.read_text(encoding="utf-8")))
            yield from reader.found


def find(root: Path) -> list[str]:
    """Returns the doors of a source tree: `file:qualified name`, sorted.

    Args:
        root: The folder `vllm`.
    """
    functions = [one for one in _functions(root) if not REMOTE.search(one.place)]
    by_name: dict[str, list[Function]] = {}
    for one in functions:
        by_name.setdefault(one.name, []).append(one)
    doors = {
        one.place
        for one in functions
        if DEFINED.fullmatch(one.name)
        or any(TARGETS.fullmatch(name) for name in (one.name, *one.calls))
    }
    while True:
        # A private name that all its functions share is as good as a target.
        names = {
            name
            for name, same in by_name.items()
            if not (name.startswith("__") or DEFINED.fullmatch(name))
            and all(one.place in doors for one in same)
        }
        more = {one.place for one in functions if one.calls & names} - doors
        if not more:
            return ["Model.load_weights", *sorted(doors)]
        doors |= more


def version_of(root: Path) -> str:
    """Returns the version of a source tree, such as `0.32`.

    Raises:
        ValueError: The tree does not name its version.
    """
    candidates = [root / "_version.py", *sorted(root.parent.glob("vllm-*.dist-info/METADATA"))]
    for path in candidates:
        if path.is_file() and (match := _VERSION.search(path.read_text(encoding="utf-8"))):
            return match[1]
    raise ValueError(f"{root} does not name its version: expected {candidates[0]}")


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description="List vLLM's doors.")
    parser.add_argument("source", type=Path, help="the folder `vllm`")
    parser.add_argument("--write", action="store_true", help="record them in vllm_doors.json")
    given = parser.parse_args()
    doors = find(given.source)
    print("\n".join(doors))
    if given.write:
        table = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
        table[version_of(given.source)] = doors
        text = json.dumps(dict(sorted(table.items())), indent=1)
        TABLE.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
