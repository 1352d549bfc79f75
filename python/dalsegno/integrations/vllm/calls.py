"""Calls of vLLM, which dies of any exception: none leaves them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from vllm.logger import init_logger

from dalsegno import PoisonedError
from dalsegno.integrations.common.trouble import Trouble
from dalsegno.integrations.vllm.metrics import Meter

logger = init_logger("vllm.dalsegno")

_T = TypeVar("_T")


class Calls:
    """Counts and logs exceptions."""

    def __init__(self, meter: Meter, report_poisoned: Callable[[], None]) -> None:
        """Takes what counts, and what reopens a store in which a put failed for good."""
        self._meter, self._report_poisoned = meter, report_poisoned
        self._log = Trouble(logger)

    def safely(self, call: str, work: Callable[[], _T], otherwise: _T) -> _T:
        """Returns what `work` returns, or `otherwise` if it raises."""
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - see above
            self.note(call, error)
            return otherwise

    def note(self, call: str, error: BaseException) -> None:
        """Counts an exception, and logs it unless one was logged recently."""
        self._meter.count("errors", 1, call)
        self._log.log(call, error)
        if isinstance(error, PoisonedError):
            self._report_poisoned()
