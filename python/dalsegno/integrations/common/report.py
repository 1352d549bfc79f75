"""What an identity is made of, for a person who asks why two engines share no block.

1. One line in the log has a short hash of each field. Fields that differ keep blocks apart.
2. One file has a line for each input: an option, a variable, a file of the model. `diff` of the
   files of two hosts names those that differ.
3. Neither has a value. Options that are called like credentials have no hash of their own either,
   because a short password can be found from its hash. They count in that of their field. Variables
   that are called so do not count.
4. Nothing here fails an engine: without a cache folder there is no file.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from dalsegno.integrations.common.cache_folder import cache_directory, replace_file
from dalsegno.integrations.common.fields import digest, is_credential
from dalsegno.integrations.common.model_files import is_there

# Random identities make a file at each start, so the oldest ones leave.
MOST_FILES = 32
_DIGITS = 12
_HASH = re.compile(r"[0-9a-f]{64}")
_NOTHING: Mapping[str, object] = MappingProxyType({})


def inputs(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Yields name and short hash of every input, sorted by name.

    Args:
        value: What fields are made of; each entry of a mapping is an input.
        name: Name of the value.
    """
    if isinstance(value, Mapping) and value:
        for key in sorted(value, key=str):
            yield from inputs(value[key], f"{name}.{key}" if name else str(key))
    else:
        yield name, "hidden" if is_credential(name) else digest(value)[:_DIGITS]


def report_file(identity: Mapping[str, str]) -> Path | None:
    """Returns the file with the inputs of an identity, None without a cache folder."""
    folder = cache_directory()
    return folder / "identities" / f"{digest(dict(identity))[:_DIGITS]}.txt" if folder else None


def write(identity: Mapping[str, str], fields: Mapping[str, object]) -> None:
    """Writes the file with the inputs of an identity, or leaves that.

    Args:
        identity: The fields of a namespace.
        fields: What they were made of.
    """
    target = report_file(identity)
    if target is None:
        return
    lines = [f"{hashed:{_DIGITS}}  {name}" for name, hashed in inputs(fields)]
    text = "\n".join(one.encode("unicode_escape").decode() for one in lines)
    with contextlib.suppress(OSError):
        replace_file(target, f"{text}\n")
    with contextlib.suppress(OSError):
        _remove_oldest(target.parent)


def _remove_oldest(folder: Path) -> None:
    """Removes all but the newest files."""
    files = sorted(folder.glob("*.txt"), key=lambda file: file.stat().st_mtime_ns)
    for file in files[:-MOST_FILES]:
        file.unlink(missing_ok=True)


def _short(value: object) -> str:
    """Returns the short hash of a field: the beginning of its value where that is a hash."""
    is_hash = isinstance(value, str) and _HASH.fullmatch(value)
    return (str(value) if is_hash else digest(value))[:8]


def log(
    logger: logging.Logger,
    model: str,
    identity: Mapping[str, str],
    further: Mapping[str, object] = _NOTHING,
) -> None:
    """Logs the line with the short hash of each field.

    Args:
        logger: The engine's.
        model: How the engine was given the model.
        identity: The fields that all namespaces of this process share.
        further: Fields of single namespaces.
    """
    fields = {**identity, **further}
    target = report_file(identity)
    logger.info(
        "Dalsegno shares blocks of %s with engines for which each of these agrees: %s. %s",
        model or "all models",
        " ".join(f"{name}={_short(fields[name])}" for name in sorted(fields) if fields[name]),
        f"{target} has a line for each input."
        if target and is_there(str(target))
        else "There is no cache folder for the list of inputs.",
    )
