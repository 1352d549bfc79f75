"""What is in a model's folder, and whether that is what the engine loaded.

1. Every file counts, in subfolders too, with its name in the folder. `excluded.toml` lists those
   that do not, with the reason for each. What the folder is called does not count.
2. The files are read after the engine has loaded them. What may have changed since the engine began
   to start is a doubt: it is not known whether that was before or after the engine read it.
3. In the hub's cache, a file that is named by the hash of its content cannot have had another.
   So is a link of a revision that was downloaded as a whole since the start.
4. What cannot be established is a doubt as well. A process with doubts shares no block. The log
   says why, and what to do.
"""

from __future__ import annotations

import glob
import hashlib
import importlib
import logging
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dalsegno import UnavailableError
from dalsegno.integrations.common import excluded, file_times
from dalsegno.integrations.common.fields import digest, nonce
from dalsegno.integrations.common.fingerprint import hash_files, real_path
from dalsegno.integrations.common.references import code_elsewhere

SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".ckpt")
# A folder with more files than this is no model's.
MOST_FILES = 10_000
NO_FILE = "no file"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_MOST_LINKS = 40
_SHARD = re.compile(r"(.+)-\d{5}-of-(\d{5}\.gguf)")
# Later than every change: what the user vouches for.
NEVER_NS = 1 << 62
_REASONS_LOGGED = 3
_IN_PLACE = (
    "put the model in place before the engine's program starts; a restart of the engine is enough"
)
_OTHER_CLOCK = (
    "start the engine a minute after its file system was mounted, or keep the model on a local disk"
)


def is_there(name: str) -> bool:
    """Returns whether a name is that of a file or folder that this process may see."""
    try:
        return Path(name).exists()
    except (OSError, ValueError):
        return False


def is_weight(name: str) -> bool:
    """Returns whether a file's name is that of weights."""
    return name.endswith(SUFFIXES)


def _is_snapshot(folder: Path) -> bool:
    """Returns whether a folder is a revision in the hub's cache."""
    of_hub = folder.parent.name == "snapshots" and folder.parents[1].name.startswith("models--")
    return of_hub and _COMMIT.fullmatch(folder.name) is not None


def _is_named_by_content(path: Path, sha256: str) -> bool:
    """Returns whether a file's name is the hash of its content, as in the hub's cache."""
    if path.name == sha256:
        return True
    if _COMMIT.fullmatch(path.name) is None:
        return False
    content = path.read_bytes()
    # The name that git gives it; large files are named by their SHA-256.
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
    return path.name == blob.hexdigest()


def _links(path: Path) -> Iterator[Path]:
    """Yields every link that leads from an absolute path to what it names."""
    place, steps, number = Path(path.anchor), list(path.parts[1:]), 0
    while steps and number < _MOST_LINKS:
        step = place / steps.pop(0)
        if not step.is_symlink():
            place = step
            continue
        yield step
        number += 1
        if file_times.is_magic(step):
            place = step
        else:
            target = place / step.readlink()
            place, steps = Path(target.anchor), [*target.parts[1:], *steps]


def _bytes_of(paths: Iterable[Path]) -> int:
    """Returns the sizes of the files together."""
    return sum(path.stat().st_size for path in paths if path.is_file())


def _shards(path: Path) -> Iterator[Path]:
    """Yields a file and the others of its model: engines are given one of several."""
    yield path
    if match := _SHARD.fullmatch(path.name):
        yield from path.parent.glob(f"{glob.escape(match[1])}-*-of-{match[2]}")


def folder_of(path: Path) -> Path:
    """Returns the folder in which an engine finds what belongs to a model, given as it was."""
    return path.parent if path.is_file() else path


def _refusal(error: OSError) -> None:
    raise error


def _engine_start_ns() -> int:
    return file_times.engine_start_ns()


@dataclass
class ModelFiles:
    """Reads the files of models for one identity.

    Attributes:
        since_ns: When the engine began to start, in nanoseconds of the wall clock.
        doubts: Why what was read may not be what the engine uses.
        remedies: What the user can do about it.
    """

    since_ns: int = field(default_factory=_engine_start_ns)
    doubts: list[str] = field(default_factory=list)
    remedies: list[str] = field(default_factory=list)

    def doubt(self, reason: str, remedy: str = "") -> None:
        """Notes a reason and what the user can do about it, each once."""
        if reason not in self.doubts:
            self.doubts.append(reason)
        if remedy and remedy not in self.remedies:
            self.remedies.append(remedy)

    def vouched(self) -> ModelFiles:
        """Returns a reader of files of which the user vouches that they do not change."""
        return replace(self, since_ns=NEVER_NS)

    def _doubt_change(self, what: str, change: str) -> None:
        """Doubts a file, a folder or a link that may have changed."""
        self.doubt(f"{what} {change}", _OTHER_CLOCK if change.startswith("may") else _IN_PLACE)

    def certainty(self, logger: logging.Logger) -> dict[str, str]:
        """Returns the field of an identity that nobody else has if there are doubts; logs them."""
        if not self.doubts:
            return {}
        more = len(self.doubts) - _REASONS_LOGGED
        logger.warning(
            "Dalsegno shares no block of this process with others until it restarts, because it is "
            "not certain what its blocks depend on: %s%s. %s",
            "; ".join(self.doubts[:_REASONS_LOGGED]),
            f"; and {more} more" if more > 0 else "",
            f"To share blocks: {'; '.join(self.remedies)}." if self.remedies else "",
        )
        return {"uncertain": f"random:{nonce()}"}

    def of_path(
        self, path: Path, *, stated: bool = False, most_bytes: int | None = None
    ) -> dict[str, str]:
        """Returns the SHA-256 of each file of a model that counts, by its name in the folder.

        Args:
            path: The model's folder, or its only file.
            stated: Whether the user vouches for the weights, so that they are not read.
            most_bytes: More bytes than these are not read, and are a doubt.
        """
        path = Path(os.path.abspath(path))  # noqa: PTH100 - links stay
        try:
            self._notice_links(folder_of(path))
            found = self._files(path)
            if len(found) > MOST_FILES:
                self.doubt(f"{path} has more than {MOST_FILES} files", "name a folder of one model")
                return {}
            if most_bytes is not None and _bytes_of(found.values()) > most_bytes:
                self.doubt(
                    f"{path}, which an option names, has more than {most_bytes >> 30} GiB",
                    "let the option name a smaller file or folder",
                )
                return {}
            return self._hash(path, found, stated=stated)
        except (OSError, UnavailableError) as error:
            self.doubt(f"the model cannot be read: {error}", "let the engine's user read it")
            return {}

    def _files(self, path: Path) -> dict[str, Path]:
        """Returns the path of each file of a model that counts, by its name in the folder.

        With one GGUF file, engines also read configuration, tokenizer and projector beside it, but
        no other weights: those are often the same model with another quantization.
        """
        if not path.is_file():
            return dict(self._walk(path))
        if path.suffix != ".gguf":
            return {path.name: path}
        beside = dict(self._walk(path.parent, is_deep=False))
        kept = {k: v for k, v in beside.items() if not is_weight(k) or "mmproj" in k.lower()}
        return {**kept, **{one.name: one for one in _shards(path)}}

    def _walk(self, top: Path, *, is_deep: bool = True) -> Iterator[tuple[str, Path]]:
        """Yields name and path of every file that counts; folders that changed are doubts.

        Args:
            top: The folder.
            is_deep: Whether its subfolders count too.
        """
        lists = excluded.load(__package__)
        snapshot, seen, number = _is_snapshot(real_path(top)), set(), 0
        for folder, folders, names in os.walk(top, followlinks=True, onerror=_refusal):
            place = Path(folder)
            facts = place.stat()
            if (facts.st_dev, facts.st_ino) in seen:
                folders.clear()
                continue
            seen.add((facts.st_dev, facts.st_ino))
            at_top = place == top
            if not is_deep:
                folders.clear()
            for one in folders:
                self._notice_links(place / one)
            folders[:] = sorted(one for one in folders if not at_top or one not in lists["folders"])
            # A file that was added or removed left no other trace.
            change = "" if snapshot else file_times.change_since(place, self.since_ns, follow=True)
            if change:
                self._doubt_change(f"the folder {place}", change)
            for name in sorted(names):
                if not at_top or name not in lists["files"]:
                    yield (place / name).relative_to(top).as_posix(), place / name
                    number += 1
            if number > MOST_FILES:
                return

    def _notice_links(self, path: Path) -> None:
        """Doubts a path that leads through a link that changed."""
        for link in _links(path):
            if change := file_times.change_since(link, self.since_ns):
                self._doubt_change(f"the link {link}", change)

    def _hash(self, top: Path, found: Mapping[str, Path], *, stated: bool) -> dict[str, str]:
        """Returns the hash of each file, and doubts those that may have changed."""
        result, regular = {}, {}
        for name, path in found.items():
            if not path.exists() or not stat.S_ISREG(path.stat().st_mode):
                result[name] = NO_FILE
            elif not (stated and is_weight(name)):
                regular[name] = path
        hashes = hash_files(regular.values())
        revision = real_path(folder_of(top))
        snapshot = _is_snapshot(revision)
        # Then the hub's client made this revision and every link in it since the start, each once.
        whole = snapshot and all(
            file_times.change_since(one, self.since_ns)
            for one in (revision.parent, *regular.values())
        )
        for name, path in regular.items():
            result[name] = hashes[path]
            new = file_times.change_since(path, self.since_ns, follow=True)
            links = [file_times.change_since(one, self.since_ns) for one in _links(path)]
            change = next(filter(None, (new, *links)), "")
            is_download = snapshot and bool(new or whole)
            if change and not (is_download and _is_named_by_content(real_path(path), hashes[path])):
                self._doubt_change(str(path), change)
        return result

    def of_name(
        self,
        name: str,
        revision: str | None = None,
        download_dir: str | None = None,
        *,
        stated: bool = False,
    ) -> dict[str, str]:
        """Returns the same for a model as an engine was given it.

        Args:
            name: A path, or a name on the hub.
            revision: Revision on the hub. Engines that look up the commit once say which it is.
            download_dir: The engine's setting of that name; the hub's own cache counts too, where
                engines keep the small files.
            stated: Whether the user vouches for the weights, so that they are not read.
        """
        if is_there(name):
            return self.of_path(Path(name), stated=stated)
        found: dict[str, str] = {}
        for place in dict.fromkeys((download_dir, None)):
            folder = self._snapshot(name, revision, place)
            if folder is not None:
                for one, sha256 in self.of_path(folder, stated=stated).items():
                    is_other = found.get(one, sha256) != sha256
                    found[f"{one} in the hub's cache" if is_other else one] = sha256
        # What the user vouches for may be in an object store.
        if not found and not (stated and "://" in name):
            self.doubt(f"{name!r} is not on this machine", "give the path of the model's folder")
        return found

    def _snapshot(self, name: str, revision: str | None, place: str | None) -> Path | None:
        """Returns the folder of a model in the hub's cache, None if it is not there."""
        revision = getattr(revision, "resolved", revision)
        try:
            hub = importlib.import_module("huggingface_hub")
            folder = Path(
                hub.snapshot_download(
                    name, revision=revision, cache_dir=place, local_files_only=True
                )
            )
            mark = folder.parents[1] / "refs" / (revision or "main")
            change = file_times.change_since(mark, self.since_ns) if mark.exists() else ""
            if change and self._may_have_moved(folder):
                self._doubt_change(str(mark), f"{change}, and there are or were other revisions")
        except Exception:  # noqa: BLE001 - the hub's client has many errors
            return None
        return folder

    def _may_have_moved(self, revision: Path) -> bool:
        """Returns whether a branch that is new may have named other files since the start.

        Args:
            revision: The folder of the revision that it names now.
        """
        revisions = list(filter(_is_snapshot, revision.parent.iterdir()))
        if len(revisions) == 1:
            # The one before may have been deleted, unless there was nothing of the model before.
            return not file_times.change_since(revision.parents[1], self.since_ns, follow=True)
        first, *others = [
            {name: real_path(path) for name, path in self._walk(one)} for one in revisions
        ]
        return any(one != first for one in others)

    def folder(self, name: str, revision: str | None) -> Path | None:
        """Returns the folder of a model, None if it is not on this machine."""
        return folder_of(Path(name)) if is_there(name) else self._snapshot(name, revision, None)

    def part(self, name: str, download_dir: str | None = None) -> dict[str, str]:
        """Returns the same as `of_name` for another model, whose weights are parts of this one."""
        found = self.of_name(name, None, download_dir)
        self.expect_weights(name, found)
        return found

    def expect_weights(self, name: str, found: Mapping[str, str]) -> None:
        """Doubts a model whose files were found without weights among them."""
        if found and not any(map(is_weight, found)):
            self.doubt(f"no weights are in the folder of {name!r}")

    def code(self, name: str, revision: str | None, code_revision: str | None) -> str:
        """Returns what stands for modelling code that is not in a model's files.

        Args:
            name: The model, as in `of_name`.
            revision: Its revision.
            code_revision: Revision of the code, also of that in the model's own repository.
        """
        folder = self.folder(name, revision)
        names = {name} if code_revision and not is_there(name) else set[str]()
        for file in sorted(folder.glob("*.json")) if folder else ():
            names |= set(code_elsewhere(file))
        found = {one: self.of_name(one, code_revision, stated=True) for one in sorted(names)}
        return digest(found) if found else ""
