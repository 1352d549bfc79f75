"""Paths of stores and their servers, as people type them."""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path

from dalsegno._native import InvalidError

# How the URLs of far locations begin.
FAR_SCHEMES = ("s3://", "gs://", "az://", "mooncake://")
# What precedes the path of a server's socket.
SOCKET_PREFIX = "unix:"
# `s3://bucket`, `file:/x`, `host:/export`: a relative path of that form is nearly always a mistake.
_ADDRESS = re.compile(r"([A-Za-z0-9][\w.+-]*):/")
# What shells, Helm, Jinja, format strings and manuals replace.
_PLACEHOLDER = re.compile(
    r"\$\w+|\$\{[^}]*\}?|\$\([^)]*\)?|`[^`]*`|\{\{.*?\}\}|\{\w*\}|%\w+%|%\(\w+\)|<[^<>/]+>"
)


def local_path(text: str, name: str = "the path") -> Path:
    """Returns `typed_path`, absolute: a later change of the working directory changes nothing.

    Raises:
        InvalidError: See `typed_path`; or the working directory is gone.
    """
    try:
        return typed_path(text, name).absolute()
    except FileNotFoundError as error:
        raise InvalidError(f"{name} is {text!r}, in a working directory that is gone") from error


def far_place(text: str, name: str = "far") -> str:
    """Returns the URL of a far location as it is, or the `local_path` of a directory.

    Raises:
        InvalidError: See `local_path`.
    """
    return text if text.startswith(FAR_SCHEMES) else str(local_path(text, name))


def typed_path(text: str, name: str = "the path") -> Path:
    """Returns the path that a text means; a leading ``~`` is the home directory.

    A shell expands ``~`` only where a word begins: ``--dir=~/x`` and quoted words arrive as typed.

    Args:
        text: The path as it was typed.
        name: What the path is, for messages.

    Raises:
        InvalidError: It is empty, the address of something else, or a template that nothing filled
            in; or the home directory is unknown.
    """
    if not text:
        raise InvalidError(f"{name} is empty; give a directory such as '/var/cache/kv'")
    if text.strip() != text or not text.isprintable():
        _refuse_characters(text, name)
    if text.startswith(SOCKET_PREFIX):
        _refuse_address(text, name, "unix")
    if address := _ADDRESS.match(text):
        _refuse_address(text, name, address[1])
    if found := _PLACEHOLDER.search(text):
        raise InvalidError(
            f"{name} is {text!r}, and Dalsegno does not replace {found[0]!r}; give the path itself"
        )
    return Path(_with_home(text, name))


def _refuse_characters(text: str, name: str) -> None:
    """Refuses space around a path, and characters that no path should have."""
    if "\0" in text:
        raise InvalidError(f"{name} is {text!r}, and no path can contain a zero byte")
    clean = text.strip()
    if not clean:
        raise InvalidError(f"{name} is {text!r}, only space; give a directory")
    if clean != text:
        raise InvalidError(f"{name} is {text!r}, with space around it; did you mean {clean!r}?")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise InvalidError(f"{name} is {text!r}, which no file system can store") from error
    if any(char < " " or char == "\x7f" for char in text):
        raise InvalidError(f"{name} is {text!r}, and contains control characters; remove them")


def _refuse_address(text: str, name: str, scheme: str) -> None:
    """Refuses what names a service or another host.

    Raises:
        InvalidError: Always.
    """
    rest = text[len(scheme) + 1 :]
    if scheme.lower() in ("file", "dir", "local"):
        raise InvalidError(f"{name} is {text!r}; did you mean {'/' + rest.lstrip('/')!r}?")
    if scheme.lower() == "unix":
        meant = f"{SOCKET_PREFIX}/{rest.lstrip('/')}"
        if text.startswith(SOCKET_PREFIX) and (rest[:2] != "//" or rest[:3] == "///"):
            raise InvalidError(
                f"{name} is {text!r}, the socket of a server; give the directory that it owns"
            )
        raise InvalidError(f"{name} is {text!r}; did you mean {meant!r}, the socket of a server?")
    relative = "" if rest.startswith("//") else f"; a relative path would be {'./' + text!r}"
    raise InvalidError(
        f"{name} is {text!r}, an address; give a directory here, such as '/mnt/kv', or mount what "
        f"is there. The far location may also be s3://, gs://, az:// or mooncake://{relative}"
    )


def _with_home(text: str, name: str) -> str:
    """Replaces a leading ``~`` or ``~user``."""
    # Path.expanduser raises RuntimeError where this returns the text as it is.
    expanded = os.path.expanduser(text)  # noqa: PTH111 - see above
    if not text.startswith("~") or expanded != text:
        return expanded
    user = text[1:].partition("/")[0]
    if user:
        raise InvalidError(
            f"{name} is {text!r}, and this host has no user {user!r}; give an absolute path, or "
            f"{'./' + text!r} for a relative one"
        )
    raise InvalidError(
        f"{name} is {text!r}, and the home directory is unknown: HOME is not set, and user id "
        f"{os.getuid()} has no entry in the password database; give an absolute path"
    )


def is_owned(directory: Path) -> bool:
    """Whether a process, such as a server, owns the store in a directory."""
    try:
        lock = os.open(directory / "LOCK", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def store_path(path: str | os.PathLike[str], name: str = "the path") -> str:
    """Returns the path of a store, or ``unix:`` and the path of a server's socket.

    Args:
        path: The path as it was typed; a leading ``~`` is the home directory.
        name: What the path is, for messages.

    Raises:
        InvalidError: See `local_path`.
    """
    text = os.fspath(path)
    if not text.startswith(SOCKET_PREFIX):
        return str(local_path(text, name))
    socket = text.removeprefix(SOCKET_PREFIX)
    if not socket:
        raise InvalidError(
            f"{name} is {text!r}; give the path of the server's socket after it, such as "
            f"'{SOCKET_PREFIX}/var/cache/kv/serve/socket'"
        )
    if socket.startswith("//") and not socket.startswith("///"):
        _refuse_address(text, name, "unix")
    return SOCKET_PREFIX + str(local_path(socket, name))
