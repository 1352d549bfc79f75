"""Standard output that fails in a way of its own, so that the exit code is right.

1. What cannot be written to standard output is an `OutputError`, which no library takes for
   something else: the command line library would end with exit code 1 for a closed pipe, which
   means findings here.
2. Nothing is left in a buffer when the command ends; the interpreter would complain about it.
3. No file of the command gets the number of a standard stream that was closed when it started.
4. A command that runs on and on writes through queues: no reader can hold it up.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from dalsegno import write_queued


class OutputError(Exception):
    """Standard output cannot be written."""

    def __init__(self, error: OSError) -> None:
        """Keeps the reason."""
        super().__init__(f"standard output cannot be written: {error.strerror or error}")
        # The reader of a pipe may stop early, as `head` does, and needs no message about it.
        self.expected = error.errno == errno.EPIPE


class _Checked:
    """A text stream whose failures are `OutputError`."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        if self._stream is None:
            raise OutputError(OSError(errno.EBADF, os.strerror(errno.EBADF)))
        try:
            return self._stream.write(text)
        except OSError as error:
            raise OutputError(error) from error

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            if self._stream is not None:
                self._stream.flush()
        except OSError as error:
            raise OutputError(error) from error


@contextmanager
def checked() -> Iterator[None]:
    """Makes failures of standard output an `OutputError`, the one of the last bytes included.

    Raises:
        OutputError: Standard output is closed or full.
    """
    _fill_closed()
    stream = sys.stdout
    sys.stdout = cast("TextIO", _Checked(stream))
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OutputError:
        if stream is not None:
            _discard(stream)
        raise
    finally:
        sys.stdout = stream


def _discard(stream: TextIO) -> None:
    """Lets what is left in the buffer go nowhere, or the interpreter fails at it when it ends."""
    # A stream without a descriptor is one of a test, and is not flushed at the end.
    with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - no path
        os.dup2(nowhere.fileno(), stream.fileno())


def _fill_closed() -> None:
    """Opens nothing in the place of closed standard streams, or files of the store get them."""
    number = 0
    while number <= 2:
        number = os.open(os.devnull, os.O_RDWR)
    os.close(number)


def queue_streams() -> None:
    """Lets all that this process prints go through queues, until it ends."""
    sys.stdout = cast("TextIO", _Queued(1))
    sys.stderr = cast("TextIO", _Queued(2))


class _Queued(io.TextIOBase):
    """A text stream that never waits for its reader."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, number: int) -> None:
        self._number = number
        self._line = threading.local()

    def write(self, text: str) -> int:
        # Each thread has its own line, so that two never mix.
        *lines, rest = (getattr(self._line, "begun", "") + text).split("\n")
        self._line.begun = rest
        for line in lines:
            write_queued(self._number, f"{line}\n".encode(errors=self.errors).decode())
        return len(text)

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def writable(self) -> bool:
        return True


def complain(text: str) -> None:
    """Prints a line on standard error, if there is one that takes it."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(f"dalsegno: {text}", file=sys.stderr, flush=True)
