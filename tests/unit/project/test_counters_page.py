"""The page of counters has exactly the names that the code exports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.unit.project.documents import DOCS, constant, table_rows

import dalsegno

PAGE = DOCS / "reference" / "counters.md"


def names(stats: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yields the dotted name of each value."""
    for name, value in stats.items():
        if isinstance(value, dict):
            yield from names(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def test_the_page_of_counters_names_every_counter_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    far = str(tmp_path / "far")
    with dalsegno.open(tmp_path / "kv", capacity="64MiB", index="lsm", far=far) as store:
        exported = set(names(store.stats()))
    assert table_rows(PAGE, "counter of the store").keys() == exported


GAUGES = constant("common/trouble.py", "GAUGES")


def test_the_page_of_counters_names_every_metric_of_vllm() -> None:
    metrics = [constant("vllm/metrics.py", name) for name in ("_COUNTERS", "_HISTOGRAMS")]
    assert table_rows(PAGE, "metric of vLLM").keys() == GAUGES.union(*metrics)


def test_the_page_of_counters_names_every_metric_of_sglang() -> None:
    metrics = constant("sglang/metrics.py", "_COUNTERS") | GAUGES
    assert table_rows(PAGE, "metric of SGLang").keys() == metrics


def test_the_page_of_counters_names_every_counter_of_lmcache() -> None:
    assert table_rows(PAGE, "counter of LMCache").keys() == constant("lmcache/meter.py", "COUNTERS")
