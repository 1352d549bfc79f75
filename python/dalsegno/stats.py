"""The types of :meth:`dalsegno.Store.stats` and :meth:`dalsegno.Namespace.locate`.

Counters start at zero when the store is opened and only grow; gauges are marked as such. Sizes are
in bytes, sectors have 4 KiB.
"""

from typing import Literal, TypedDict

DeviceState = Literal["working", "suspended", "trying"]


class MergingStats(TypedDict):
    """Merging of small extents."""

    merges: int  # extents that were made of several others
    merged_extents: int  # extents that became part of another one
    merged_bytes: int  # bytes of blocks that merging rewrote
    skipped_no_room: int  # merges postponed because the log had no free space
    skipped_changed: int  # merges abandoned because blocks were removed, dropped or moved meanwhile
    skipped_damaged: int  # merges abandoned because stored bytes were damaged
    skipped_failed: int  # merges abandoned because the device failed
    waiting_lineages: int  # gauge: lineages whose small extents wait to be merged


class ScrubbingStats(TypedDict):
    """Background verification of stored bytes."""

    rounds: int  # rounds over everything stored
    extents: int  # extents that were read
    bytes: int  # bytes of blocks that were read and verified
    damaged_blocks: int  # blocks that were damaged, and quarantined


class DeviceStats(TypedDict):
    """Health of the device."""

    # gauge: ``"working"``; ``"suspended"`` while reads hang or fail, so that calls with a timeout
    # fail fast; ``"trying"`` while test requests find out whether reads work again
    reads: DeviceState
    writes: DeviceState  # gauge: the same for writes and syncs
    read_suspensions: int  # times that reads were suspended
    write_suspensions: int  # times that writes were suspended
    refused_requests: int  # requests refused while a direction was suspended
    owed_requests: int  # gauge: requests in flight that the device has not completed


class ClassStats(TypedDict):
    """The requests of a class."""

    waiting: int  # gauge: requests that wait for their turn
    waiting_bytes: int  # gauge: their bytes
    started: int  # requests that started
    aged: int  # requests that started because they had waited for long enough
    refused: int  # requests refused because too many of the class waited


class ScheduleStats(TypedDict):
    """In which order requests to the device start, and why."""

    # gauge: what the most urgent engine does; ``"unknown"`` if no engine says so
    phase: Literal["prefill", "decode", "idle", "unknown"]
    engines: int  # gauge: engines that say what they do
    need: ClassStats  # what engines wait for
    prefetch: ClassStats  # what engines are about to need
    save: ClassStats  # what engines have computed, and the space for it
    upkeep: ClassStats  # merging, scrubbing, the index
    read_window_bytes: int  # gauge: bytes of reads in flight that keep the device busy
    write_window_bytes: int  # gauge: the same of writes
    decode_pace_bytes_per_s: int  # gauge: the pace of saves and upkeep while engines decode
    interference: float  # gauge: the rate of reads beside writes over that of reads alone


class CodecStats(TypedDict):
    """Compression since the store was opened."""

    encoded_bytes: int  # bytes of blocks that were compressed
    encoded_stored_bytes: int  # their compressed size
    not_shrunk_bytes: int  # bytes of blocks stored uncompressed because they would not shrink
    encode_ns: int  # nanoseconds spent compressing, including blocks that did not shrink
    decoded_bytes: int  # bytes that were decompressed, whether requested or not
    decode_ns: int  # nanoseconds spent decompressing


# Why a block that the index found was a miss.
MissCause = Literal[
    "slice_checksum",  # the checksum of a slice did not match
    "codec",  # a compressed unit was damaged
    "header",  # the extent's header was damaged
    "wrong_place",  # the bytes belonged to another extent or place
    "truncated",  # the file ended before the bytes
    "bad_sector",  # the device could not read these bytes, though it read others
    "device",  # the device failed
    "suspended",  # the device was suspended, so nothing was requested
    "deadline",  # the call's timeout passed
    "cancelled",  # the call was cancelled
    "throttled",  # the queue or the staging memory was exhausted
    "recycled",  # the segment was recycled meanwhile
]


class LogStats(TypedDict):
    """The log: device I/O and segments."""

    read_bytes: int  # bytes read from the device, including padding and headers
    read_requests: int  # read requests sent to the device
    staged_read_bytes: int  # bytes read through a staging buffer instead of the caller's memory
    written_bytes: int  # bytes written to the device
    write_requests: int  # write requests sent to the device
    staged_write_bytes: int  # bytes written through a staging buffer
    syncs: int  # calls of ``fdatasync``
    codec: CodecStats  # compression
    segments_created: int  # segment files created
    segments_recycled: int  # segments recycled
    segments_given_back: int  # segment files removed because the on-disk index needed their space
    # segment files that found no space on the disk, or none that the index did not need
    creations_refused: int
    # blocks that were found in the index and lost while reading, by cause
    misses: dict[MissCause, int]


class FarPublishedStats(TypedDict):
    """What this store wrote to the far location."""

    packs: int  # packs that were published
    bytes: int  # their bytes
    blocks: int  # their blocks
    failed_blocks: int  # blocks of packs that could not be written
    full: int  # how often the location had no space
    evicted_packs: int  # packs removed to stay within ``far_capacity``
    own_bytes: int  # gauge: bytes of this store's packs there, earlier opens included


class FarRequests(TypedDict):
    """What was sent to an object store, and what it costs there."""

    reads: int  # reads of objects, and questions for one: GET and HEAD
    writes: int  # writes of objects: PUT and POST, at ten times the price of a read
    lists: int  # pages of listings, at the price of a write
    removals: int  # DELETE, which costs nothing
    others: int  # requests for credentials
    retries: int  # requests that were sent again after a failure
    # requests that failed, by cause: ``missing``, ``exists``, ``denied``, ``no_bucket``,
    # ``region``, ``slow_down``, ``server``, ``connect``, ``timeout``, ``cut``, ``protocol``,
    # ``refused``, ``too_large``
    failed: dict[str, int]
    read_bytes: int  # bytes of objects that were read, gaps between wanted ranges included
    written_bytes: int  # bytes of objects that were written
    response_us: int  # gauge: microseconds until a response begins, about
    request_bytes_per_s: int  # gauge: bytes per second of one request from then on, about
    gap_bytes: int  # gauge: two ranges are read as one if no more bytes are between them


class FarStats(TypedDict):
    """The far tier."""

    # gauge: ``"working"``; ``"suspended"`` while the location does not respond; ``"away"`` while
    # its directory does not exist or its file system is not mounted
    reads: str
    reopened: int  # how often another directory was at the path than before, and was used from then
    suspensions: int  # how often reads were suspended
    refused_requests: int  # reads that were refused meanwhile
    packs: int  # gauge: packs of all stores that are indexed
    pack_bytes: int  # gauge: their bytes
    blocks: int  # gauge: blocks that are found there
    duplicate_blocks: int  # gauge: blocks that another pack has as well
    forgotten_blocks: int  # blocks of packs forgotten to bound the memory of the index
    index_bytes: int  # gauge: memory of the index, about
    used_bytes: int  # bytes of blocks that were hits
    fetched_bytes: int  # bytes fetched for them, including padding and headers
    read_requests: int  # read requests sent to the location
    # blocks that were found there and lost while reading, by cause
    misses: dict[MissCause, int]
    promoted_blocks: int  # blocks copied to the log because they were hit twice
    rescued_blocks: int  # blocks that the local disk could not return, read from here instead
    # blocks read into DRAM because the beginning of their chain was read here
    prefetched_blocks: int
    prefetch_used_blocks: int  # those that a get used within ten seconds
    # blocks that were to be prefetched: DRAM had no place, the read failed, or too many waited
    prefetch_dropped_blocks: int
    in_flight_bytes: int  # gauge: bytes of read requests that the location has not completed
    # read requests by the microseconds that they took: ``up_to_64``, ``up_to_128`` and so on up to
    # ``up_to_4194304``, each without those of the ones before, and ``longer``
    requests_by_us: dict[str, int]
    waiting_extents: int  # gauge: extents that wait to be written
    dropped_blocks: int  # blocks not written: too many waited, or they were gone too soon
    present_blocks: int  # blocks not written because they were there already
    bad_objects: int  # gauge: objects and folders there that cannot be used now
    bad_catalogs: int  # gauge: those of them that are catalogs: the blocks of each are misses
    newest_bad_object: str | None  # gauge: the one that was found last, and why
    applied_removals: int  # removals of other stores that were applied here
    pending_removals: int  # gauge: removals of this store that other hosts do not know yet
    complete_polls: int  # polls after which all removals of others that could be read were applied
    failed_polls: int  # polls that failed
    collected_writers: int  # folders of dead stores that this store removed
    collected_packs: int  # packs in such folders that this store removed
    requests: FarRequests | None  # what was sent to an object store; none for a directory
    published: FarPublishedStats  # what this store wrote


class Located(TypedDict):
    """Consecutive blocks that one tier would serve: see :meth:`dalsegno.Namespace.locate`."""

    tier: Literal["dram", "log", "far"]  # memory, the local disk, or the far directory
    blocks: int  # how many blocks
    bytes: int  # their bytes
    # the median time in which recent calls had their blocks of this tier, in nanoseconds, and the
    # bytes per second of these calls; ``None`` before the first one
    latency_p50_ns: int | None
    bytes_per_s: int | None


class IndexShape(TypedDict):
    """Shape of the on-disk index."""

    size_ratio: int  # size of a level relative to the one above it
    runs: int  # most runs of a level
    last_runs: int  # most runs of the last level


# A change of the index's shape after so many operations; in this syntax as `from` is a keyword.
IndexDecision = TypedDict(
    "IndexDecision", {"operations": int, "from": str, "to": str, "reason": str}
)


class IndexLookupStats(TypedDict):
    """Operations of the on-disk index that its tables served; memtables do not count."""

    written_entries: int  # entries written, of all kinds
    point_hits: int  # lookups of one key or place that found an entry
    point_misses: int  # lookups of one key or place that found none
    scans: int  # scans started
    scanned_entries: int  # entries that scans passed, in memory or in tables
    point_sectors: int  # sectors read for lookups of keys
    order_sectors: int  # sectors read for lookups of ordered entries, by key or by place
    vain_sectors: int  # those sectors of both kinds that did not hold the entry
    scan_sectors: int  # sectors read by scans


class IndexStats(TypedDict):
    """The on-disk index."""

    tuning: str  # the setting ``index_tuning``: ``"auto"``, ``"off"`` or a shape
    # the last changes of shape, oldest first, including those of earlier processes
    decisions: list[IndexDecision]
    shape: IndexShape  # gauge: the shape
    runs: list[int]  # gauge: runs of each level, newest data first
    run_bytes: list[list[int]]  # gauge: bytes of each run, by level
    tables: int  # gauge: table files
    table_bytes: int  # gauge: their bytes
    entries: int  # gauge: entries in tables, including superseded ones
    points: int  # gauge: entries of single blocks among them
    pinned_bytes: int  # gauge: bytes of filters and block lists in memory
    buffer_bytes: int  # gauge: bytes of the table that a full memtable becomes
    asked: IndexLookupStats  # operations that the tables served
    upkeep_sectors: int  # sectors of lookups by maintenance, without those read by merges
    flushes: int  # memtables that became tables
    flushed_bytes: int  # bytes of these tables
    merges: int  # merges of tables
    merged_bytes: int  # bytes that they wrote
    merge_read_bytes: int  # bytes of the tables that they read
    # tables dropped because the index outgrew its space; their blocks are misses
    forgotten_tables: int
    damaged: bool  # whether a table is damaged; the next open rebuilds the index


class Stats(TypedDict):
    """All counters and gauges of a store."""

    put_calls: int  # calls of put
    put_stored_blocks: int  # blocks that puts wrote
    pool_only_blocks: int  # blocks that pool-only puts kept in DRAM
    put_present_blocks: int  # blocks that the store already had
    put_pending_blocks: int  # blocks that another put was writing
    put_declined_blocks: int  # blocks that the admission policy declined
    put_failed_blocks: int  # blocks that could not be written: no space, timeout, device failure
    put_bytes: int  # bytes of blocks written
    get_calls: int  # calls of get
    get_dram_blocks: int  # blocks served from DRAM
    get_log_blocks: int  # blocks served from the log
    get_far_blocks: int  # blocks served from the far tier
    get_missed_blocks: int  # blocks that were misses, whatever the cause
    get_bytes: int  # bytes served
    probe_calls: int  # calls of probe
    probe_asked_blocks: int  # blocks in these calls
    probe_present_blocks: int  # leading blocks that they found
    evicted_blocks: int  # blocks evicted to reclaim space
    relocated_bytes: int  # bytes moved to reclaim space
    quarantined_blocks: int  # blocks quarantined because their bytes were damaged
    removed_blocks: int  # blocks removed by callers
    throttled_transfers: int  # transfers refused because the queue was full
    engine_copied_bytes: int  # bytes copied between the store's memory and the pages of engines
    open_faults: int  # damaged places found when the store was opened
    merging: MergingStats  # merging of small extents
    scrubbing: ScrubbingStats  # background verification
    extents: int  # gauge: extents in the index
    blocks: int  # gauge: blocks in the index
    dram_blocks: int  # gauge: blocks in DRAM
    dram_bytes: int  # gauge: bytes in DRAM; each block is rounded up to units of 64 KiB
    dram_admitted_blocks: int  # blocks that entered DRAM
    dram_evicted_blocks: int  # blocks evicted from DRAM
    # blocks that did not enter DRAM because reads in flight still held the memory of evicted ones
    dram_throttled_blocks: int
    disk_bytes: int  # gauge: disk space in use
    capacity_bytes: int  # gauge: most disk space
    poisoned: bool  # gauge: whether a failed sync has stopped all writes
    device: DeviceStats  # health of the device
    schedule: ScheduleStats  # in which order requests to the device start, and why
    io_engine: str  # I/O engine of the files: ``"uring"`` or ``"psync"``
    io_direct: bool  # whether requests bypass the page cache
    index: IndexStats | None  # the on-disk index; ``None`` for an in-memory index
    log: LogStats  # the log
    far: FarStats | None  # the far tier; ``None`` without the setting ``far``
