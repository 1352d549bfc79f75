"""The namespaces of an open store: one for each model, layout and size of objects.

1. A namespace's fields are what `AdapterSettings` says of the identity, the model's name, and the
   dtypes and shapes of the tensors in an object: numbers of one dtype are never read as another.
2. Namespaces are opened when LMCache first names their kind; those that had objects when the store
   was opened are known from then on, since not every look-up says what objects are made of.
3. There is a bound on how many are opened; what is beyond it is not kept.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dalsegno import InvalidError
from dalsegno.integrations.common.fields import digest

# Objects of one model have one size for each of its object groups; a serializer that makes objects
# of ever other sizes ends here.
MOST_SPACES = 256
# A field of a namespace has at most 1,024 bytes.
_LONGEST = 900
_WIDTHS = (1, 2, 4)
# The layout that LMCache gives to what a serializer made of an object.
_ROW_OF_BYTES = re.compile(r"uint8\[\d+\]")


class Layout(NamedTuple):
    """What an object is made of.

    Attributes:
        shapes: The shape of each tensor in it.
        dtypes: The dtype of each.
        object_bytes: Its size; a serializer may have made it less than the shapes say.
    """

    shapes: tuple[Any, ...]
    dtypes: tuple[Any, ...]
    object_bytes: int

    @classmethod
    def of_object(cls, one: Any) -> Layout:
        """Returns the layout of a `MemoryObj` of LMCache."""
        meta = one.metadata
        object_bytes = int(one.get_size())
        if meta.shapes is not None and meta.dtypes is not None:
            return cls(tuple(meta.shapes), tuple(meta.dtypes), object_bytes)
        return cls((meta.shape,), (meta.dtype,), object_bytes)

    @classmethod
    def of_description(cls, described: Any) -> Layout:
        """Returns the layout that a `MemoryLayoutDesc` of LMCache describes."""
        sizes = [
            shape.numel() * dtype.itemsize
            for shape, dtype in zip(described.shapes, described.dtypes, strict=True)
        ]
        return cls(tuple(described.shapes), tuple(described.dtypes), sum(sizes))

    def text(self) -> str:
        """Returns dtypes and shapes as they stand in a namespace's field."""
        parts = [
            f"{str(dtype).removeprefix('torch.')}{list(shape)}"
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        ]
        return _short("; ".join(parts))

    def element_bytes(self) -> int:
        """Returns the width of a number, 1 if there is not one for all."""
        widths = {getattr(dtype, "itemsize", 1) for dtype in self.dtypes}
        width = widths.pop() if len(widths) == 1 else 1
        return width if width in _WIDTHS else 1


def _short(value: str) -> str:
    """Returns a text that fits a field."""
    return value if len(value.encode()) <= _LONGEST else f"hash {digest(value)}"


@dataclass(frozen=True, slots=True)
class Space:
    """A namespace.

    Attributes:
        namespace: As the store has it.
        object_bytes: Size of its objects.
        serialized: Whether they are bytes in a row, which says nothing of what they were made from.
    """

    namespace: Any
    object_bytes: int
    serialized: bool


class Spaces(Mapping[tuple[str, str, int], Any]):
    """The namespaces by model, layout and size; threads may share it."""

    def __init__(self, store: Any, identity: Mapping[str, str], codec: str) -> None:
        """Takes over the namespaces that the store has for this identity.

        Args:
            store: An open store.
            identity: The fields that all namespaces share.
            codec: How objects are stored from now on.
        """
        self._store, self._identity, self._codec = store, dict(identity), codec
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str, int], Space] = {}
        self._models: dict[str, list[Space]] = {}
        # Namespaces that were opened for writing, by what LMCache says of their objects.
        self._ready: dict[tuple[str, Layout], Space] = {}
        for namespace in store.namespaces():
            fields = dict(namespace.fields)
            model, layout = fields.pop("model", ""), fields.pop("layout", "")
            if fields == self._identity:
                self._add((model, layout, namespace.block_bytes), namespace)

    def _add(self, address: tuple[str, str, int], namespace: Any) -> Space:
        """Notes a namespace."""
        serialized = _ROW_OF_BYTES.fullmatch(address[1]) is not None
        space = Space(namespace, address[2], serialized)
        known = [one for one in self._models.get(address[0], ()) if one != self._known.get(address)]
        self._models[address[0]] = [*known, space]
        self._known[address] = space
        return space

    def open(self, model: str, layout: Layout) -> Space:
        """Returns the namespace of some objects, opened if need be.

        Raises:
            InvalidError: The store cannot keep objects so large, or there are too many kinds.
        """
        if (space := self._ready.get((model, layout))) is not None:
            return space
        with self._lock:
            address = (_short(model), layout.text(), layout.object_bytes)
            if address not in self._known and len(self._known) >= MOST_SPACES:
                raise InvalidError(
                    f"there are objects of {MOST_SPACES} kinds already, so those of {model} with "
                    f"{layout.object_bytes} bytes are not kept; a serializer that makes objects of "
                    f"ever other sizes does not go with this store"
                )
            width = {"element_bytes": layout.element_bytes()} if self._codec == "zstd" else {}
            fields = {**self._identity, "model": address[0], "layout": address[1]}
            namespace = self._store.namespace(
                fields, layers=1, slice_bytes=layout.object_bytes, codec=self._codec, **width
            )
            space = self._ready[(model, layout)] = self._add(address, namespace)
            return space

    def of_model(self, model: str, layouts: Sequence[Layout] = ()) -> list[Space]:
        """Returns the namespaces in which objects of a model may be found.

        Args:
            model: Its name.
            layouts: What the objects are made of, if LMCache says. Then these, and those of
                serialized objects, whose layout LMCache does not say; else all of the model.
        """
        if not layouts:
            return self._models.get(_short(model), [])
        known = []
        for layout in layouts:
            # Objects that the store cannot keep are not there; serialized, they may be smaller.
            with contextlib.suppress(InvalidError):
                known.append(self.open(model, layout))
        others = [space for space in self._models.get(_short(model), ()) if space.serialized]
        return list(dict.fromkeys([*known, *others]))

    def __getitem__(self, address: tuple[str, str, int]) -> Any:
        return self._known[address].namespace

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        return iter(list(self._known))

    def __len__(self) -> int:
        return len(self._known)
