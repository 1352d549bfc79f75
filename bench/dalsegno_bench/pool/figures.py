"""The figures of the bench `pool`, from what its clients measured."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CLIENTS", "Figures", "Run"]

CLIENTS = (1, 2, 4, 8)
MOST_CLIENTS = CLIENTS[-1]
MIB = 1 << 20


@dataclass(frozen=True)
class Run:
    """What some clients did at the same time.

    Attributes:
        found: What each measured.
        hits: Share of the blocks that came from DRAM.
        dram_bytes: DRAM with blocks, of all processes together.
    """

    found: list[dict[str, Any]]
    hits: float = 1.0
    dram_bytes: int = 0

    @property
    def gb(self) -> float:
        """Gigabytes moved."""
        return float(sum(one["bytes"] for one in self.found)) / 1e9

    @property
    def gb_per_s(self) -> float:
        """Gigabytes a second."""
        return float(sum(one["bytes"] / one["s"] for one in self.found)) / 1e9

    @property
    def cpu_s_per_gb(self) -> float:
        """CPU seconds of clients and server for a gigabyte."""
        clients = sum(one["cpu_s"] for one in self.found)
        return float(clients + self.found[0]["server_cpu_s"]) / self.gb

    @property
    def p50_us(self) -> float:
        """Microseconds of a call, the median of the clients'."""
        return float(statistics.median(one["p50_us"] for one in self.found))

    @property
    def us(self) -> float:
        """Microseconds of a call, the mean of the first client."""
        return float(self.found[0]["s"] / self.found[0]["calls"] * 1e6)

    @property
    def rates(self) -> list[float]:
        """Calls a second of each client."""
        return [one["calls"] / one["s"] for one in self.found]

    @property
    def slowest_share(self) -> float:
        """The slowest client's rate / the mean."""
        return float(min(self.rates) / statistics.mean(self.rates))


Reading = Callable[[Run], float]


@dataclass
class Figures:
    """Runs by what was measured and the number of clients, one for each round."""

    runs: dict[tuple[str, int], list[Run]] = field(default_factory=lambda: defaultdict(list))

    def median(self, what: str, clients: int, reading: Reading) -> float:
        """Median of the rounds."""
        return statistics.median(map(reading, self.runs[what, clients]))

    def ratios(self, one: str, other: str, clients: int, reading: Reading) -> list[float]:
        """Ratio of each round."""
        pairs = zip(self.runs[one, clients], self.runs[other, clients], strict=True)
        return [reading(a) / reading(b) for a, b in pairs]

    def ratio(self, one: str, other: str, clients: int, reading: Reading) -> float:
        """Median of the rounds' ratios."""
        return statistics.median(self.ratios(one, other, clients, reading))

    def result(self, blocks: int) -> dict[str, Any]:
        """Returns the figures of all parts that ran.

        Args:
            blocks: Blocks of a prompt of large blocks.
        """
        found: dict[str, Any] = {}
        if self.runs["small probe", 1]:
            found |= self._calls()
        if self.runs["large view", 1]:
            found |= self._views(blocks)
        if self.runs["large copy", 1]:
            found |= self._copies()
        if self.runs["own copy", 1]:
            found["scaling"] = self._scaling()
        return found

    def _calls(self) -> dict[str, Any]:
        by_round = {
            op: self.ratios(f"zmq {op}", f"small {op}", 1, lambda run: run.p50_us)
            for op in ("probe", "lease")
        }
        ratios = {op: round(statistics.median(found), 2) for op, found in by_round.items()}
        ranges = {op: [round(min(r), 2), round(max(r), 2)] for op, r in by_round.items()}
        micros = {
            f"{contender}_{op}": round(
                self.median(f"{contender} {op}", 1, lambda run: run.p50_us), 1
            )
            for contender in ("small", "zmq")
            for op in ("probe", "lease")
        }

        def rate(run: Run) -> float:
            return sum(run.rates)

        at = MOST_CLIENTS
        return {
            "zmq_ratio": min(ratios.values()),
            "zmq_ratios": ratios,
            "zmq_ratio_ranges": ranges,
            "call_us": micros,
            "acquires_s": round(self.median("small lease", at, rate)),
            "zmq_acquires_s": round(self.median("zmq lease", at, rate)),
            "slowest_client_share": round(
                self.median("small lease", at, lambda run: run.slowest_share), 3
            ),
            "acquire_cpu_us": round(
                self.median("small lease", at, cpu_us_of_call(with_clients=True)), 1
            ),
            "acquire_server_cpu_us": round(
                self.median("small lease", at, cpu_us_of_call(with_clients=False)), 1
            ),
        }

    def _views(self, blocks: int) -> dict[str, Any]:
        speeds = {
            what: round(self.median(what, 1, lambda run: run.gb_per_s), 2)
            for what in ("large sum", "tcp sum")
        }
        return {
            "view_us_512k": round(self.median("large view", 1, lambda run: run.us) / blocks, 2),
            "view_sum_vs_tcp_sum": round(
                self.ratio("large sum", "tcp sum", 1, lambda run: run.gb_per_s), 2
            ),
            "sum_gb_per_s": speeds,
        }

    def _copies(self) -> dict[str, Any]:
        both, at = ("large copy", "tcp copy"), (1, MOST_CLIENTS)
        speeds = {n: round(self.ratio(*both, n, lambda run: run.gb_per_s), 2) for n in at}
        costs = {n: round(self.ratio(*both, n, lambda run: run.cpu_s_per_gb), 3) for n in at}
        return {
            "copy_vs_tcp": min(speeds.values()),
            "copy_vs_tcp_by_clients": speeds,
            "copy_cpu_vs_tcp": max(costs.values()),
            "copy_cpu_vs_tcp_by_clients": costs,
            "copies": [self._row(what, n) for n in at for what in both],
        }

    def _scaling(self) -> list[dict[str, Any]]:
        contenders = ("large copy", "own copy", "tcp copy")
        return [self._row(what, n) for n in CLIENTS for what in contenders]

    def _row(self, what: str, clients: int) -> dict[str, Any]:
        names = {"large copy": "shared pool", "own copy": "store per client", "tcp copy": "tcp"}
        return {
            "contender": names[what],
            "clients": clients,
            "hit_rate": round(self.median(what, clients, lambda run: run.hits), 3),
            "dram_mib": round(self.median(what, clients, lambda run: run.dram_bytes / MIB)),
            "gb_per_s": round(self.median(what, clients, lambda run: run.gb_per_s), 2),
            "cpu_s_per_gb": round(self.median(what, clients, lambda run: run.cpu_s_per_gb), 4),
        }


def cpu_us_of_call(*, with_clients: bool) -> Reading:
    """Returns what reads the CPU microseconds of a call: of the server, or of clients too."""

    def reading(run: Run) -> float:
        calls = float(sum(one["calls"] for one in run.found))
        clients = sum(one["cpu_s"] for one in run.found) if with_clients else 0.0
        return float(clients + run.found[0]["server_cpu_s"]) / calls * 1e6

    return reading
