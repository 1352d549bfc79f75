"""Many at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def threads(works: list[Callable[[], None]]) -> Iterator[None]:
    """Runs works at once; an error of any of them is the test's."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    running = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for one in running:
        one.start()
    yield
    for one in running:
        one.join()
    if errors:
        raise errors[0]
