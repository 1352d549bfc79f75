"""The docstrings at run time and those of the stub, which editors show, are the same."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

import pytest

from dalsegno import _native

STUB = Path(__file__).parents[3] / "python" / "dalsegno" / "_native.pyi"


def documented(node: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yields the dotted name and the docstring of everything public in the stub."""
    for one in node.body:
        if isinstance(one, ast.ClassDef | ast.FunctionDef) and not one.name.startswith("_"):
            yield prefix + one.name, ast.get_docstring(one) or ""
            if isinstance(one, ast.ClassDef):
                yield from documented(one, f"{one.name}.")


PUBLIC = dict(documented(ast.parse(STUB.read_text())))


@pytest.mark.parametrize("name", PUBLIC)
def test_help_shows_the_docstring_of_the_stub(name: str) -> None:
    thing = attrgetter(name)(_native)
    assert PUBLIC[name], f"{name} has no docstring in the stub"
    assert inspect.getdoc(thing) == PUBLIC[name]


def test_the_module_has_the_docstring_of_the_stub() -> None:
    assert inspect.getdoc(_native) == ast.get_docstring(ast.parse(STUB.read_text()))


def test_the_stub_documents_everything_that_is_public() -> None:
    names = set()
    for name in _native.__all__:
        thing = getattr(_native, name)
        if callable(thing):
            names.add(name)
        if isinstance(thing, type):
            members = {one for one in vars(thing) if not one.startswith("_")}
            names |= {f"{name}.{member}" for member in members}
    assert names == set(PUBLIC)


def test_every_call_has_a_signature_at_run_time() -> None:
    for name in PUBLIC:
        thing = attrgetter(name)(_native)
        if callable(thing) and not isinstance(thing, type):
            inspect.signature(thing)
