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
        default: The value without it, or a sentence that describes it.
        derived: Whether ``default`` is a sentence.
        also: Further values that a choice accepts.
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
        "Maximum bytes of all files. At the limit, the least valuable blocks are evicted. Without "
        "it, the chosen value is logged.",
        derived=True,
    ),
    Setting(
        "segment",
        "bytes",
        "`capacity` / 32, rounded down to a power of two, 1 MiB to 256 MiB",
        ("1 MiB", "4 GiB"),
        "Size of a segment file, the unit of eviction; a power of two. A block must fit into one, "
        "and `capacity` must hold 4. An existing store keeps its size.",
        derived=True,
    ),
    Setting(
        "extent",
        "bytes",
        "32 MiB",
        ("0",),
        "Maximum size of an extent, limited to 8 KiB and a quarter of a segment. A larger block is "
        "an extent of its own.",
    ),
    Setting(
        "dram",
        "bytes",
        "256 MiB",
        ("0",),
        "Maximum memory of the DRAM tier. A block takes whole units of 64 KiB. `0` disables it; "
        "use that where the engine has a memory cache itself.",
    ),
    Setting(
        "dram_admission",
        "choice",
        "get",
        ("get", "put"),
        "When a block enters the DRAM tier: when it is read, or when it is put.",
    ),
    Setting(
        "admission",
        "choice",
        "all",
        ("all", "second-put"),
        "Which blocks a put writes. `second-put` declines a block the first time and writes it "
        "when it is put again: less wear of the flash, one more computation of each prefix.",
    ),
    Setting(
        "durability",
        "choice",
        "none",
        ("none", "batch"),
        "What an acknowledged put survives. `none`: a crash of the process. `batch`: a power cut "
        "too; a put returns after `fdatasync`, which puts that arrive together share.",
    ),
    Setting(
        "io_engine",
        "choice",
        "auto",
        ("auto", "uring", "psync"),
        "Linux `io_uring`, or threads with `preadv` and `pwritev`. `auto` uses `io_uring` if the "
        "kernel allows it. With `uring` the open fails if the kernel does not.",
    ),
    Setting(
        "io_depth",
        "number",
        "8",
        ("1", "64"),
        "Maximum requests that one call keeps in flight. From 4 MiB in flight on, a call adds no "
        "more, because more would not keep a device busier.",
    ),
    Setting(
        "io_request",
        "bytes",
        "1 MiB",
        ("256 KiB", "4 MiB"),
        "Maximum size of a request to the device.",
    ),
    Setting(
        "staging",
        "bytes",
        "64 MiB",
        ("16 MiB", "64 GiB"),
        "Memory of staging buffers, for unaligned buffers and for calls with a timeout.",
    ),
    Setting(
        "header_cache",
        "bytes",
        "32 MiB",
        ("0",),
        "Memory for headers of extents that were verified, so that a get need not read them again.",
    ),
    Setting(
        "index",
        "choice",
        "memory",
        ("memory", "lsm"),
        "Where the index is. `memory`: about 150 bytes per block, rebuilt at every open. `lsm`: on "
        "disk, with bounded memory and a quick open; it reserves 1/32 of the capacity.",
    ),
    Setting(
        "index_memory",
        "bytes",
        "128 MiB",
        ("1 MiB", "64 GiB"),
        "Memory of the on-disk index, without its filters of about 1.5 bytes per block.",
    ),
    Setting(
        "index_tuning",
        "choice",
        "auto",
        ("auto", "off"),
        "Whether the shape of the on-disk index follows the workload. `off` keeps the present "
        "shape, a shape pins it. `store.stats()` and `dalsegno info` show shape and reason.",
        also="a shape such as `T=8,K=3,Z=1`",
    ),
    Setting(
        "index_rate",
        "bytes",
        "256 MiB",
        ("0",),
        "Maximum bytes per second that compaction of the on-disk index writes. `0`: no limit. "
        "Flushes are not limited.",
    ),
    Setting(
        "merge_rate",
        "bytes",
        "64 MiB",
        ("0",),
        "Maximum bytes per second that merging of small extents writes. Merging yields to readers. "
        "`0` disables it.",
    ),
    Setting(
        "scrub_rate",
        "bytes",
        "4 MiB",
        ("0",),
        "Maximum bytes per second that scrubbing reads. It checks everything that is stored once a "
        "day, or as fast as this rate allows, and yields to readers. `0` disables it.",
    ),
    Setting(
        "transfer_threads",
        "number",
        "2",
        ("1", "64"),
        "Threads for loads (`submit_get`), and as many for stores (`submit_put`).",
    ),
    Setting(
        "transfer_queue",
        "number",
        "256",
        ("1", "65536"),
        "Maximum loads that wait for a thread, and as many stores. Further ones are throttled.",
    ),
    Setting(
        "namespaces",
        "number",
        "16384",
        ("1", "65536"),
        "Maximum namespaces of a store. An open forgets those without a block.",
    ),
    Setting(
        "far",
        "path or URL",
        "none",
        (),
        "A directory of a shared file system, a [bucket](far-object.md) such as `s3://bucket/kv`, "
        "or a [Mooncake cluster](far-mooncake.md), in which the stores of many hosts share blocks.",
        derived=True,
    ),
    Setting(
        "far_options",
        "object",
        "none",
        (),
        "How what a URL names is reached: `endpoint`, `region`, `ca_file`, `path_style`, "
        "`storage_class`, `encryption`; of a cluster `catalogs`, `replicas`, `protocol`, "
        "`devices`, `metadata_server`. Credentials come from the environment.",
        derived=True,
    ),
    Setting(
        "far_capacity",
        "bytes",
        "a tenth of its file system, 1 TiB of a bucket or a cluster",
        ("0",),
        "Maximum bytes that this store has there, with what it wrote before it was opened again. "
        "Beyond it, its oldest packs are removed.",
        derived=True,
    ),
    Setting(
        "far_workers",
        "number",
        "32",
        ("1", "64"),
        "Maximum reads of the far location at a time, and of other calls. Each takes a thread of a "
        "far directory, or a connection to a bucket.",
    ),
    Setting(
        "far_write",
        "choice",
        "put",
        ("put", "second-put", "evict"),
        "When a block is written to the far directory: after it was put, when it is put again, or "
        "when it is evicted here. Writing happens in the background and never delays a put.",
    ),
    Setting(
        "far_flush_s",
        "seconds",
        "5",
        ("0.1", "1800"),
        "Blocks are published there at the latest after this time, even if their pack is not full.",
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

A store needs no settings. Pass settings that differ from the defaults when you open it:

```python
store = dalsegno.open("/var/cache/kv", capacity="200GiB", dram="2GiB")
```

Or write them into a TOML file and name it in the environment variable `DALSEGNO_CONFIG`:

```toml
{EXAMPLE}```

A setting in the call overrides the setting in the file. Byte counts are numbers or text with a
unit: `"200GiB"`, `"1.5 TB"`, `4096`. Quantities of Kubernetes work too: `"32Gi"`, `"500M"`. An
unknown name is an error that names the nearest known one. `store.limits()` returns the bounds that
follow from all settings. No setting makes a store return wrong bytes.

A store that [`dalsegno serve`](serve.md) shares has the settings of the server: `--pool` is its
`dram`, `--capacity` its `capacity`, `--far` its `far`, `--far-capacity` its `far_capacity`, and
`--set NAME=VALUE` sets any other. The integrations of engines take `capacity` and the settings that
begin with `far` as keys of their own, and all others in `store`. A server's `dram_admission` is
`put` by default. The settings of its clients are ignored.

The environment variable `DALSEGNO_LOG` (`error`, `warn`, `info`, `debug`, `trace`) sets the level
of the log on standard error. Any other value is logged as a warning.

| setting | value | default | meaning |
|---|---|---|---|
"""


def _value(setting: Setting) -> str:
    if setting.kind == "choice":
        names = [f"`{one}`" for one in setting.allowed]
        return " or ".join([*names, setting.also] if setting.also else names)
    if not setting.allowed:
        return setting.kind
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
