"""Work in a forked child."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable

# A child that takes longer hangs: a signal ends it, and the test fails.
LIMIT_S = 60


def in_child(work: Callable[[], None]) -> None:
    """Runs `work` in a forked child that ends at once; fails if it raises, hangs or dies."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LIMIT_S)
        code = 1
        try:
            work()
            code = 0
        except BaseException:  # noqa: BLE001 - a child never returns into the tests
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
