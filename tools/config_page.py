"""All settings of a store in one table, and the page of the documentation that is made of it.

``python3 tools/config_page.py > docs/guides/configuration.md`` writes the page. A test holds
that the page is in step with this table, and this table with the store: names, defaults, bounds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        name: As it is written in a call of ``dalsegno.open`` and in a file.
        kind: ``bytes``, ``number`` or ``choice``.
        default: What holds without it: a value that may be written, or a sentence.
        derived: Whether ``default`` is a sentence.
        also: What else may stand there besides the values of a choice.
        allowed: The smallest and the largest value, or all values of a choice.
        meaning: What it does, and when to change it.
    """

    name: str
    kind: str
    default: str
    allowed: tuple[str, ...]
    meaning: str
    derived: bool = False
    also: str = ""


SETTINGS = (
    Setting(
        "capacity",
        "bytes",
        "80% of what the disk can give when the store is opened",
        ("5 MiB",),
        "Most disk space of all files together. When it is reached, room is made by giving up what "
        "was of least use. Without it the choice is told on standard error.",
        derived=True,
    ),
    Setting(
        "segment",
        "bytes",
        "`capacity` / 32, rounded down to a power of two, 1 MiB to 256 MiB",
        ("1 MiB", "4 GiB"),
        "Size of a segment file, the unit in which room is made; a power of two. A block must fit "
        "into one. Chosen when the store is created: a store that exists keeps its own, and at "
        "least 4 segments must fit into `capacity`.",
        derived=True,
    ),
    Setting(
        "extent",
        "bytes",
        "32 MiB",
        ("0",),
        "Largest piece in which neighbouring blocks are stored; at least 8 KiB and at most a "
        "quarter of a segment, whatever is set. A block that is larger is a piece of its own.",
    ),
    Setting(
        "dram",
        "bytes",
        "256 MiB",
        ("0",),
        "Most memory for blocks kept in front of the disk; `0` switches that off, right where the "
        "engine has a cache in memory itself.",
    ),
    Setting(
        "dram_admission",
        "choice",
        "get",
        ("get", "put"),
        "When a block enters that memory: when it is read, or already when it is put.",
    ),
    Setting(
        "admission",
        "choice",
        "all",
        ("all", "second-put"),
        "Which blocks a put writes. With `second-put` a block is declined the first time and "
        "written when it comes again: less wear of the flash, one more computation of each prefix.",
    ),
    Setting(
        "durability",
        "choice",
        "none",
        ("none", "batch"),
        "Whether a put waits until its blocks survive a power cut. With `none` they survive a "
        "crash of the process, and a power cut may lose the newest; with `batch` a put returns "
        "after `fdatasync`, and puts that arrive together share one. Neither ever yields wrong "
        "bytes.",
    ),
    Setting(
        "io_engine",
        "choice",
        "auto",
        ("auto", "uring", "psync"),
        "How files are read and written: Linux `io_uring`, or threads with `preadv` and "
        "`pwritev`. `auto` takes `io_uring` where the kernel allows it; with `uring` opening fails "
        "where it does not.",
    ),
    Setting(
        "io_depth",
        "number",
        "8",
        ("1", "64"),
        "Requests that one call keeps in flight. Of large ones fewer, about 4 MiB together: more "
        "would not keep a device busier.",
    ),
    Setting(
        "io_request",
        "bytes",
        "1 MiB",
        ("256 KiB", "4 MiB"),
        "Largest single request to the device.",
    ),
    Setting(
        "staging",
        "bytes",
        "64 MiB",
        ("16 MiB", "64 GiB"),
        "Aligned memory through which bytes go that cannot be read or written in place: buffers "
        "that are not aligned, and calls with a timeout.",
    ),
    Setting(
        "header_cache",
        "bytes",
        "32 MiB",
        ("0",),
        "Memory for headers of extents that were checked already, so that a get need not read "
        "them again.",
    ),
    Setting(
        "index",
        "choice",
        "memory",
        ("memory", "lsm"),
        "Where the index lives: in memory, about 150 bytes per block and rebuilt at every open; "
        "or in files beside the blocks, with bounded memory and a quick open however many blocks "
        "there are, for which 1/32 of the capacity is set aside.",
    ),
    Setting(
        "index_memory",
        "bytes",
        "128 MiB",
        ("1 MiB", "64 GiB"),
        "Memory of an index in files, but for its filters, which take about 1.5 bytes per block.",
    ),
    Setting(
        "index_tuning",
        "choice",
        "auto",
        ("auto", "off"),
        "Whether the shape of an index in files (size ratio T, runs per level K, runs of the last "
        "level Z) follows what is asked of it. With `off` it stays as it is; a shape pins it. "
        "`store.stats()` and `dalsegno info` tell the shape and why it was chosen.",
        also="a shape such as `T=8,K=3,Z=1`",
    ),
    Setting(
        "index_rate",
        "bytes",
        "256 MiB",
        ("0",),
        "Most bytes a second that merging tables of an index in files writes; `0` sets no bound. "
        "What was put last becomes a table at once, whatever the rate.",
    ),
    Setting(
        "merge_rate",
        "bytes",
        "64 MiB",
        ("0",),
        "Most bytes a second that merging writes: blocks that were put one at a time are written "
        "once more, behind one another, so that they are read in long pieces. It stands back while "
        "somebody reads. `0` switches it off.",
    ),
    Setting(
        "scrub_rate",
        "bytes",
        "4 MiB",
        ("0",),
        "Most bytes a second that scrubbing reads: once a day, or as long as it takes, everything "
        "stored is read and checked, so that bytes that went bad are found before they are asked "
        "for. It stands back while somebody reads. `0` switches it off.",
    ),
    Setting(
        "transfer_threads",
        "number",
        "2",
        ("1", "64"),
        "Threads that carry out loads (`submit_get`), and as many that carry out stores "
        "(`submit_put`).",
    ),
    Setting(
        "transfer_queue",
        "number",
        "256",
        ("1", "65536"),
        "Loads that may wait for a thread before a new one is throttled, and as many stores.",
    ),
    Setting(
        "namespaces",
        "number",
        "4096",
        ("1", "65536"),
        "Most namespaces of one store. Those without a block are forgotten when it is opened.",
    ),
)

EXAMPLE = """\
capacity = "200GiB"
dram = "2GiB"
durability = "batch"
"""

_HEAD = f"""\
# Configuration

<!-- Generated by `python3 tools/config_page.py`; change the table there. -->

A store needs no settings. What differs from the defaults is given when it is opened,

```python
store = dalsegno.open("/var/cache/kv", capacity="200GiB", dram="2GiB")
```

or stands in a TOML file that the environment variable `DALSEGNO_CONFIG` names:

```toml
{EXAMPLE}```

A setting in the call goes before the same setting in the file. Byte counts are numbers or text with
a unit: `"200GiB"`, `"1.5 TB"`, `4096`. Quantities of Kubernetes are read too: `"32Gi"`, `"500M"`.
An unknown name is an error that tells the nearest known one. `store.limits()` tells what all of it
came to.

The environment variable `DALSEGNO_LOG` (`error`, `warn`, `info`, `debug`, `trace`) shows what the
store has to say on standard error. Any other value is logged as a warning.

| setting | value | default | meaning |
|---|---|---|---|
"""


def _value(setting: Setting) -> str:
    if setting.kind == "choice":
        names = [f"`{one}`" for one in setting.allowed]
        return " or ".join([*names, setting.also] if setting.also else names)
    low, *high = setting.allowed
    bounds = f", {low} to {high[0]}" if high else f", {low} or more" if low != "0" else ""
    return setting.kind + bounds


def page() -> str:
    """Returns docs/guides/configuration.md."""
    rows = [
        f"| `{one.name}` | {_value(one)} "
        f"| {one.default if one.derived else f'`{one.default}`'} | {one.meaning} |\n"
        for one in SETTINGS
    ]
    return _HEAD + "".join(rows)


if __name__ == "__main__":
    print(page(), end="")
