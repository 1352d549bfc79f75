"""The options and variables of an engine, as far as they count.

1. Every option counts, unless `excluded.toml` names it with a reason. A new option counts as well.
2. An option that names a file, a folder or a model in the hub's cache counts with the content, not
   with the name. So does a variable that names a file.
3. A value of which nothing certain can be said is a doubt.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import os
import re
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from dalsegno.integrations.common.fields import is_credential
from dalsegno.integrations.common.model_files import ModelFiles, is_there

# What Kubernetes sets for a service whose name is that of an engine.
_SERVICE_LINK = re.compile(r".*(_SERVICE_(HOST|PORT)(_\w+)?|_PORT(_\d+_(TCP|UDP|SCTP)\w*)?)")
# Variables of libraries that choose kernels or their precision, by the beginnings of their names.
LIBRARY_VARIABLES = (
    "AITER_",
    "ASCEND_USE_",
    "CUBLAS",
    "CUDNN_",
    "DNNL_",
    "FLASHINFER_",
    "FLASH_ATTENTION_",
    "FLA_",
    "HIP_ONLINE_TUNING",
    "INKLING_",
    "MINIMAX_",
    "MKL_",
    "MSA_",
    "NVIDIA_TF32",
    "ONEDNN_",
    "ROCM_QUICK_REDUCE_",
    "TORCHINDUCTOR_",
    "TORCH_",
    "TRITON_",
    "TRTLLM_",
    "USE_DEFAULT_FLA_NORM",
    "USE_FLAGOS",
)
# Packages that compute what is in the KV, or that turn images, sound and video into tensors.
LIBRARIES = (
    "aiter",
    "av",
    "bitsandbytes",
    "compressed-tensors",
    "decord2",
    "deep-gemm",
    "flash-attn",
    "flash-attn-4",
    "flashinfer-python",
    "gguf",
    "humming-kernels",
    "intel-extension-for-pytorch",
    "kernels",
    "librosa",
    "mistral-common",
    "numpy",
    "opencv-python-headless",
    "pillow",
    "quack-kernels",
    "scipy",
    "sgl-deep-gemm",
    "sgl-flash-mla",
    "sgl-kernel",
    "sglang-kernel",
    "soundfile",
    "soxr",
    "tilelang",
    "timm",
    "torch",
    "torchaudio",
    "torchcodec",
    "torchvision",
    "transformers",
    "triton",
    "vllm-gguf-plugin",
    "xformers",
    "zentorch",
)
# An option that names more than this is a doubt: hashing it may take longer than loading the model.
MOST_BYTES = 16 << 30
# What transformers notes about where a configuration came from.
_CONFIG_NOISE = ("_name_or_path", "_commit_hash", "transformers_version")


def fields_of(value: object) -> Iterable[str]:
    """Returns the names of the options that a configuration has, none if it is no configuration."""
    if dataclasses.is_dataclass(value):
        return [one.name for one in dataclasses.fields(value)]
    return getattr(value, "__struct_fields__", None) or getattr(type(value), "model_fields", {})


def without_noise(config: object) -> object:
    """Returns a Hugging Face configuration without what does not matter."""
    if isinstance(config, Mapping):
        kept = {name: one for name, one in config.items() if name not in _CONFIG_NOISE}
        return {str(name): without_noise(one) for name, one in kept.items()}
    return [without_noise(one) for one in config] if isinstance(config, list | tuple) else config


class Options:
    """Turns configurations into values that JSON has and that say all that counts."""

    def __init__(self, files: ModelFiles, excluded: Mapping[str, Mapping[str, str]]) -> None:
        """Starts with nothing counted.

        Args:
            files: Reads the files that options name, and collects doubts.
            excluded: Class of a configuration -> option -> why it does not count; the option `*`
                is the whole configuration.
        """
        self._files, self._excluded = files, excluded

    def _skipped(self, value: object) -> Collection[str]:
        """Returns the options of a configuration that do not count."""
        names: set[str] = set()
        for kind in type(value).__mro__:
            names |= self._excluded.get(kind.__name__, {}).keys()
        return names

    def value(self, value: Any, where: str = "") -> object:
        """Returns what counts of a value.

        Args:
            value: A configuration, or any value in one.
            where: Its name, for messages.
        """
        if isinstance(value, enum.Enum):
            return value.name
        if isinstance(value, str | Path):
            return self._text(str(value), where)
        if isinstance(value, bool | int | float | None):
            return value
        if isinstance(value, Mapping | list | tuple | set | frozenset):
            return self._collection(value, where)
        names = fields_of(value)
        return self._fields(value, names, where) if names else self._object(value, where)

    def _collection(self, value: Any, where: str) -> object:
        """Returns what counts of several values."""
        if isinstance(value, Mapping):
            # Keys of different types may have equal texts.
            is_unique = len({str(key) for key in value}) == len(value)
            name: Callable[[object], str] = str if is_unique else repr
            return {name(key): self.value(one, f"{where}.{key}") for key, one in value.items()}
        found = [self.value(one, where) for one in value]
        return found if isinstance(value, list | tuple) else sorted(found, key=str)

    def _fields(self, value: Any, names: Iterable[str], where: str) -> object:
        """Returns what counts of a configuration."""
        skipped = self._skipped(value)
        if "*" in skipped:
            return "excluded"
        return {
            name: self.value(getattr(value, name, None), f"{where}.{name}".lstrip("."))
            for name in names
            if name not in skipped
        }

    def _object(self, value: Any, where: str) -> object:
        """Returns what counts of an object."""
        if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
            return f"{value.__module__}.{value.__qualname__}"
        for name in ("to_dict", "compute_hash"):
            method: Callable[[], object] | None = getattr(value, name, None)
            if method is not None:
                return without_noise(method())
        text = repr(value)
        if " at 0x" in text:
            self._files.doubt(
                f"the option {where} is {text}, of which no content is known",
                f"give {where} as text",
            )
        return text

    def _text(self, text: str, where: str) -> object:
        """Returns a text, or the content of what it names."""
        if text.startswith("{"):
            with contextlib.suppress(ValueError):
                return self.value(json.loads(text), where)
        may_be_hub = where.endswith(("_path", "_file"))
        if not text or not ("/" in text or may_be_hub):
            return text
        files: Mapping[str, str] = {}
        # A socket or a device has no content of its own.
        if is_there(text) and (Path(text).is_file() or Path(text).is_dir()):
            files = self._files.of_path(Path(text), most_bytes=MOST_BYTES)
        elif where.endswith("name_or_path") or (may_be_hub and self._files.folder(text, None)):
            files = self._files.of_name(text)
        else:
            return text
        return {"content of": where, "files": files}


def variables(
    files: ModelFiles, prefixes: Iterable[str], names: Iterable[str], skipped: Collection[str]
) -> Iterator[tuple[str, object]]:
    """Yields name and value of every variable of the environment that counts, sorted.

    Credentials do not: they let an engine read something, and what it reads counts.

    Args:
        files: Reads the files that variables name. Folders count by their names.
        prefixes: Beginnings of names that count.
        names: Further names that count.
        skipped: Names that do not.
    """
    known, starts = set(names), tuple(prefixes) + LIBRARY_VARIABLES
    for name, value in sorted(os.environ.items()):
        counts = name in known or (name.startswith(starts) and not _SERVICE_LINK.fullmatch(name))
        if not counts or name in skipped or is_credential(name):
            continue
        is_file = "/" in value and is_there(value) and Path(value).is_file()
        yield name, files.of_path(Path(value), most_bytes=MOST_BYTES) if is_file else value


def libraries(groups: Iterable[str]) -> dict[str, str]:
    """Returns the versions of the libraries that compute, and of the plugins of an engine.

    Args:
        groups: Groups of entry points by which plugins reach into the engine.
    """
    found = {}
    for name in LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    for group in groups:
        for point in metadata.entry_points(group=group):
            if point.dist is None or point.dist.name != "dalsegno":
                version = point.dist.version if point.dist else ""
                found[f"{group} {point.name}"] = f"{point.value} {version}"
    return found
