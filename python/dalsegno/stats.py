"""The types of :meth:`dalsegno.Store.stats`.

Counters start at zero when the store is opened and only grow; gauges are marked as such. Sizes are
in bytes, sectors have 4 KiB.
"""

from typing import Literal, TypedDict

__all__ = [
    "CodecStats",
    "DeviceState",
    "DeviceStats",
    "IndexDecision",
    "IndexLookupStats",
    "IndexShape",
    "IndexStats",
    "LogStats",
    "MergingStats",
    "MissCause",
    "ScrubbingStats",
    "Stats",
]

DeviceState = Literal["working", "suspended", "trying"]


class MergingStats(TypedDict):
    """Merging of small extents.

    Attributes:
        merges: Extents that were made of several others.
        merged_extents: Extents that became part of another one.
        merged_bytes: Bytes of blocks that merging rewrote.
        deferrals: Times that merging yielded to reads.
        skipped_no_room: Merges postponed because the log had no free space.
        skipped_changed: Merges abandoned because blocks were removed, dropped or moved meanwhile.
        skipped_damaged: Merges abandoned because stored bytes were damaged.
        skipped_failed: Merges abandoned because the device failed.
        waiting_lineages: Gauge: lineages whose small extents wait to be merged.
    """

    merges: int
    merged_extents: int
    merged_bytes: int
    deferrals: int
    skipped_no_room: int
    skipped_changed: int
    skipped_damaged: int
    skipped_failed: int
    waiting_lineages: int


class ScrubbingStats(TypedDict):
    """Background verification of stored bytes.

    Attributes:
        rounds: Rounds over everything stored.
        extents: Extents that were read.
        bytes: Bytes of blocks that were read and verified.
        damaged_blocks: Blocks that were damaged, and quarantined.
    """

    rounds: int
    extents: int
    bytes: int
    damaged_blocks: int


class DeviceStats(TypedDict):
    """Health of the device.

    Attributes:
        reads: Gauge: ``"working"``; ``"suspended"`` while reads hang or fail, so that calls with a
            timeout fail fast; ``"trying"`` while test requests find out whether reads work again.
        writes: Gauge: the same for writes and syncs.
        read_suspensions: Times that reads were suspended.
        write_suspensions: Times that writes were suspended.
        refused_requests: Requests refused while a direction was suspended.
        owed_requests: Gauge: requests in flight that the device has not completed.
    """

    reads: DeviceState
    writes: DeviceState
    read_suspensions: int
    write_suspensions: int
    refused_requests: int
    owed_requests: int


class CodecStats(TypedDict):
    """Compression since the store was opened.

    Attributes:
        encoded_bytes: Bytes of blocks that were compressed.
        encoded_stored_bytes: Their compressed size.
        not_shrunk_bytes: Bytes of blocks stored uncompressed because they would not shrink.
        encode_ns: Nanoseconds spent compressing, including blocks that did not shrink.
        decoded_bytes: Bytes that were decompressed, whether requested or not.
        decode_ns: Nanoseconds spent decompressing.
    """

    encoded_bytes: int
    encoded_stored_bytes: int
    not_shrunk_bytes: int
    encode_ns: int
    decoded_bytes: int
    decode_ns: int


# Why a block that the index found was a miss:
#   slice_checksum  the checksum of a slice did not match
#   codec           a compressed unit was damaged
#   header          the extent's header was damaged
#   wrong_place     the bytes belonged to another extent or place
#   truncated       the file ended before the bytes
#   bad_sector      the device could not read these bytes, though it read others
#   device          the device failed
#   suspended       the device was suspended, so nothing was requested
#   deadline        the call's timeout passed
#   cancelled       the call was cancelled
#   throttled       the queue or the staging memory was exhausted
#   recycled        the segment was recycled meanwhile
MissCause = Literal[
    "slice_checksum",
    "codec",
    "header",
    "wrong_place",
    "truncated",
    "bad_sector",
    "device",
    "suspended",
    "deadline",
    "cancelled",
    "throttled",
    "recycled",
]


class LogStats(TypedDict):
    """The log: device I/O and segments.

    Attributes:
        read_bytes: Bytes read from the device, including padding and headers.
        read_requests: Read requests sent to the device.
        staged_read_bytes: Bytes read through a staging buffer instead of the caller's memory.
        written_bytes: Bytes written to the device.
        write_requests: Write requests sent to the device.
        staged_write_bytes: Bytes written through a staging buffer.
        syncs: Calls of ``fdatasync``.
        codec: Compression.
        segments_created: Segment files created.
        segments_recycled: Segments recycled.
        segments_given_back: Segment files removed because the on-disk index needed their space.
        creations_refused: Segment files that found no space on the disk, or none that the index
            did not need.
        misses: Blocks that were found in the index and lost while reading, by cause.
    """

    read_bytes: int
    read_requests: int
    staged_read_bytes: int
    written_bytes: int
    write_requests: int
    staged_write_bytes: int
    syncs: int
    codec: CodecStats
    segments_created: int
    segments_recycled: int
    segments_given_back: int
    creations_refused: int
    misses: dict[MissCause, int]


class IndexShape(TypedDict):
    """Shape of the on-disk index; a setting of all three is written ``size_ratio,runs,last_runs``.

    Attributes:
        size_ratio: Size of a level relative to the one above it.
        runs: Most runs of a level.
        last_runs: Most runs of the last level.
    """

    size_ratio: int
    runs: int
    last_runs: int


# A change of the index's shape: the shape before and after it, the operations of the index until
# then, and one sentence for people. In this syntax because `from` is a keyword.
IndexDecision = TypedDict(
    "IndexDecision", {"operations": int, "from": str, "to": str, "reason": str}
)


class IndexLookupStats(TypedDict):
    """Operations of the on-disk index that its tables served; memtables do not count.

    Attributes:
        written_entries: Entries written, of all kinds.
        point_hits: Lookups of one key or place that found an entry.
        point_misses: Lookups of one key or place that found none.
        scans: Scans started.
        scanned_entries: Entries that scans passed, in memory or in tables.
        point_sectors: Sectors read for lookups of keys.
        order_sectors: Sectors read for lookups of ordered entries, by key or by place.
        vain_sectors: Those sectors of both kinds that did not hold the entry.
        scan_sectors: Sectors read by scans.
    """

    written_entries: int
    point_hits: int
    point_misses: int
    scans: int
    scanned_entries: int
    point_sectors: int
    order_sectors: int
    vain_sectors: int
    scan_sectors: int


class IndexStats(TypedDict):
    """The on-disk index.

    Attributes:
        tuning: The setting ``index_tuning``: ``"auto"``, ``"off"`` or a shape.
        decisions: The last changes of shape, oldest first, including those of earlier processes.
        shape: Gauge: the shape.
        runs: Gauge: runs of each level, newest data first.
        run_bytes: Gauge: bytes of each run, by level.
        tables: Gauge: table files.
        table_bytes: Gauge: their bytes.
        entries: Gauge: entries in tables, including superseded ones.
        points: Gauge: entries of single blocks among them.
        pinned_bytes: Gauge: bytes of filters and block lists in memory.
        buffer_bytes: Gauge: bytes of the table that a full memtable becomes.
        asked: Operations that the tables served.
        upkeep_sectors: Sectors of lookups by maintenance, without those read by merges.
        flushes: Memtables that became tables.
        flushed_bytes: Bytes of these tables.
        merges: Merges of tables.
        merged_bytes: Bytes that they wrote.
        merge_read_bytes: Bytes of the tables that they read.
        forgotten_tables: Tables dropped because the index outgrew its space; their blocks are
            misses.
        damaged: Whether a table is damaged; the next open rebuilds the index.
    """

    tuning: str
    decisions: list[IndexDecision]
    shape: IndexShape
    runs: list[int]
    run_bytes: list[list[int]]
    tables: int
    table_bytes: int
    entries: int
    points: int
    pinned_bytes: int
    buffer_bytes: int
    asked: IndexLookupStats
    upkeep_sectors: int
    flushes: int
    flushed_bytes: int
    merges: int
    merged_bytes: int
    merge_read_bytes: int
    forgotten_tables: int
    damaged: bool


class Stats(TypedDict):
    """All counters and gauges of a store.

    Attributes:
        put_calls: Calls of put.
        put_stored_blocks: Blocks that puts wrote.
        put_present_blocks: Blocks that the store already had.
        put_pending_blocks: Blocks that another put was writing.
        put_declined_blocks: Blocks that the admission policy declined.
        put_failed_blocks: Blocks that could not be written: no space, timeout, device failure.
        put_bytes: Bytes of blocks written.
        get_calls: Calls of get.
        get_dram_blocks: Blocks served from DRAM.
        get_log_blocks: Blocks served from the log.
        get_missed_blocks: Blocks that were misses, whatever the cause.
        get_bytes: Bytes served.
        probe_calls: Calls of probe.
        probe_asked_blocks: Blocks in these calls.
        probe_present_blocks: Leading blocks that they found.
        evicted_blocks: Blocks evicted to reclaim space.
        relocated_bytes: Bytes moved to reclaim space.
        quarantined_blocks: Blocks quarantined because their bytes were damaged.
        removed_blocks: Blocks removed by callers.
        throttled_transfers: Transfers refused because the queue was full.
        open_faults: Damaged places found when the store was opened.
        merging: Merging of small extents.
        scrubbing: Background verification.
        extents: Gauge: extents in the index.
        blocks: Gauge: blocks in the index.
        dram_blocks: Gauge: blocks in DRAM.
        dram_bytes: Gauge: bytes in DRAM; each block is rounded up to sectors.
        dram_admitted_blocks: Blocks that entered DRAM.
        dram_evicted_blocks: Blocks evicted from DRAM.
        dram_throttled_blocks: Blocks that did not enter DRAM because reads in flight still held the
            memory of evicted ones.
        disk_bytes: Gauge: disk space in use.
        capacity_bytes: Gauge: most disk space.
        poisoned: Gauge: whether a failed sync has stopped all writes.
        device: Health of the device.
        io_engine: I/O engine of the files: ``"uring"`` or ``"psync"``.
        io_direct: Whether requests bypass the page cache.
        index: The on-disk index; ``None`` for an in-memory index.
        log: The log.
    """

    put_calls: int
    put_stored_blocks: int
    put_present_blocks: int
    put_pending_blocks: int
    put_declined_blocks: int
    put_failed_blocks: int
    put_bytes: int
    get_calls: int
    get_dram_blocks: int
    get_log_blocks: int
    get_missed_blocks: int
    get_bytes: int
    probe_calls: int
    probe_asked_blocks: int
    probe_present_blocks: int
    evicted_blocks: int
    relocated_bytes: int
    quarantined_blocks: int
    removed_blocks: int
    throttled_transfers: int
    open_faults: int
    merging: MergingStats
    scrubbing: ScrubbingStats
    extents: int
    blocks: int
    dram_blocks: int
    dram_bytes: int
    dram_admitted_blocks: int
    dram_evicted_blocks: int
    dram_throttled_blocks: int
    disk_bytes: int
    capacity_bytes: int
    poisoned: bool
    device: DeviceStats
    io_engine: str
    io_direct: bool
    index: IndexStats | None
    log: LogStats
