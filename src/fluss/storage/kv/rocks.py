"""RocksDB as the stores use it: the only module that imports ``rocksdict``.

The library is an extra. This module imports without it, and ``KvResources`` says what to install. The library's errors
are plain exceptions with a text; ``explain`` gives them a type.

What it does with the GIL shapes the code around it: ``get`` with a list of keys, ``flush`` and ``close`` release it;
``write``, adding to an SST file, every step of an iterator, opening and copying do not.

RocksDB opens, writes, syncs, renames and removes its own files itself, past the vfs: the files of a database, the SST
files that ``sst_writer`` writes and ``ingest`` moves, and the hard links of a checkpoint. What stores do around that
goes through ``DISK``.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Final

from fluss.errors import ErrorCode, FlussError, KvDamagedError
from fluss.storage.kv.key_filter import FilterMemory
from fluss.storage.kv.manifest import check_files
from fluss.storage.kv.store_settings import KvStoreSettings
from fluss.storage.kv.write_buffers import WriteBuffers
from fluss.storage.vfs import Files, OsFiles

try:
    from rocksdict import (
        AccessType,
        BlockBasedIndexType,
        BlockBasedOptions,
        BottommostLevelCompaction,
        Cache,
        Checkpoint,
        ChecksumType,
        CompactOptions,
        DataBlockIndexType,
        DBCompressionType,
        IngestExternalFileOptions,
        Options,
        Rdict,
        RdictIter,
        ReadOptions,
        SstFileWriter,
        WriteBatch,
        WriteBufferManager,
        WriteOptions,
    )
except ImportError:
    _IS_INSTALLED = False
else:
    _IS_INSTALLED = True

__all__ = [
    "DISK",
    "PORTABLE_FORMAT_VERSION",
    "KvResources",
    "Rdict",
    "RdictIter",
    "SstFileWriter",
    "WriteBatch",
    "compact",
    "copy_database",
    "explain",
    "ingest",
    "is_stall",
    "next_keys",
    "number_of",
    "open_database",
    "open_read_only",
    "remove_database",
    "scan",
    "sst_writer",
    "write",
    "write_batch",
]

_KIB: Final = 1024
_MIB: Final = 1024 * _KIB
# RocksDB writes to the disk of the machine, so there is no other one for what lies beside its files.
DISK: Final[Files] = OsFiles()
_COLUMN_FAMILY: Final = "default"
# The newest format of SST files that RocksDB 6 reads, which Java clients of Apache Fluss have.
PORTABLE_FORMAT_VERSION: Final = 5
# An error of the operating system that says that a file of the store is gone. All others are the machine's trouble,
# which may pass: the files are as good as they were.
_LOST: Final = tuple(os.strerror(number) for number in (errno.ENOENT, errno.EISDIR))
_SYSTEM_ERRORS: Final = ("IO error", "os error")
_DAMAGE: Final = ("Corruption", "Invalid argument", "Not implemented", "NotFound")
_STALL: Final = "Result incomplete"
# A scan steps over removed keys with the GIL held: with so many in a write buffer, 10 to 20 ms. In SST files they are
# merged away.
_BUFFERED_REMOVALS_MAX: Final = 50_000


class KvResources:
    """What all stores of a server share: the block cache, and the limit of what is not yet on the disk.

    May be used from any thread, and dropped when the last store is closed.
    """

    def __init__(self, settings: KvStoreSettings | None = None, *, sleep: Callable[[float], None] = time.sleep) -> None:
        if not _IS_INSTALLED:
            raise FlussError(
                'Primary-key tables need RocksDB, which is not installed here: pip install "flussbett[server]"',
                ErrorCode.KV_STORAGE_EXCEPTION,
            )
        self.settings = settings or KvStoreSettings()
        self.sleep = sleep
        self._cache = Cache(self.settings.block_cache_bytes)
        # It only counts: with a limit of its own it would flush whichever store is written to.
        self._buffer_manager = WriteBufferManager(2**62, False)
        self.write_buffers = WriteBuffers(self.settings.write_buffers_bytes_max, self._buffer_manager.get_usage)
        self.filter_memory = FilterMemory(self.settings.key_filters_bytes_max)
        self.options = self._options(self.settings.open_files_max)
        # Of a database with many stores.
        self.shared_options = self._options(self.settings.shared_open_files_max)
        # Of a copy that is opened to be changed by a single row: its SST files stay as they are.
        self.copy_options = self._options(self.settings.open_files_max)
        self.copy_options.set_disable_auto_compactions(True)

    @property
    def cached_bytes(self) -> int:
        """What the block cache holds."""
        return self._cache.get_usage()

    @property
    def buffered_bytes(self) -> int:
        """What the write buffers of all stores take, idle ones and those that a snapshot keeps included."""
        return self.write_buffers.used_bytes

    def _options(self, open_files_max: int) -> Options:
        settings = self.settings
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_paranoid_checks(True)
        options.set_block_based_table_factory(self._table_options())
        options.set_compression_type(DBCompressionType.lz4())
        options.set_write_buffer_manager(self._buffer_manager)
        options.set_write_buffer_size(settings.write_buffer_bytes)
        options.set_arena_block_size(min(256 * _KIB, settings.write_buffer_bytes // 8))
        # A filter in front of the write buffer, ten bits for a row of a hundred bytes: most keys are not in it.
        options.set_memtable_whole_key_filtering(True)
        options.set_memtable_prefix_bloom_ratio(0.01)
        # Writes never slow down, they go on or wait, see ``is_stall``: with three buffers to flush, or with 36 SST
        # files at level 0 to merge.
        options.set_max_write_buffer_number(4)
        options.set_level_zero_slowdown_writes_trigger(36)
        options.set_level_zero_stop_writes_trigger(36)
        options.set_level_compaction_dynamic_level_bytes(True)
        # A scan has to step over removed keys one by one: SST files with runs of them are merged soon.
        options.add_compact_on_deletion_collector_factory(10_000, 5_000, 0.5)
        options.set_max_background_jobs(settings.background_jobs_max)
        options.set_bytes_per_sync(_MIB)
        # The list of SST files, which is read as a whole before RocksDB reads it: see ``check_files``.
        options.set_max_manifest_file_size(256 * _KIB)
        options.set_max_open_files(open_files_max)
        # Each part of the list of open files has one at least: with the usual 64 parts no limit below that would hold.
        options.set_table_cache_num_shard_bits(2)
        options.set_max_file_opening_threads(1)
        options.set_skip_stats_update_on_db_open(True)
        options.set_avoid_unnecessary_blocking_io(True)
        # RocksDB's own text file about what it does.
        options.set_keep_log_file_num(1)
        options.set_max_log_file_size(_MIB)
        options.set_stats_dump_period_sec(0)
        options.set_stats_persist_period_sec(0)
        return options

    def _table_options(self) -> BlockBasedOptions:
        table = BlockBasedOptions()
        table.set_block_cache(self._cache)
        table.set_bloom_filter(10, False)
        # Indexes and filters share the cache with the rows, so that memory does not grow with the store. They are cut
        # into pieces: the cache has 64 shards and cannot keep what is larger than one of them.
        table.set_cache_index_and_filter_blocks(True)
        table.set_index_type(BlockBasedIndexType.two_level_index_search())
        table.set_partition_filters(True)
        table.set_metadata_block_size(32 * _KIB)
        table.set_pin_top_level_index_and_filter(True)
        table.set_data_block_index_type(DataBlockIndexType.binary_and_hash())
        # Those that ``sst_check`` knows, too.
        if self.settings.is_portable:
            table.set_checksum_type(ChecksumType.crc32c())
            table.set_format_version(PORTABLE_FORMAT_VERSION)
        else:
            table.set_checksum_type(ChecksumType.xxh3())
            # The first with checksums that also notice a block in a wrong place.
            table.set_format_version(6)
        return table


def open_database(directory: Path, resources: KvResources, options: Options | None = None) -> Rdict:
    """Open the database in a directory, or create one where there is none."""
    options = options or resources.options
    try:
        check_files(DISK, directory)
        # Without the column families it would take the options of one that are stored in the directory.
        database = Rdict(os.fspath(directory), options, {_COLUMN_FAMILY: options})
    except FlussError:
        raise
    except Exception as error:
        raise explain(error, directory) from error
    writing = WriteOptions()
    # The changelog is the write-ahead log.
    writing.disable_wal = True  # type: ignore[method-assign, assignment]  # Its stub takes the attribute for a method.
    # A write that would have to wait fails, see ``is_stall``.
    writing.no_slowdown = True
    database.set_write_options(writing)
    return database


def open_read_only(directory: Path) -> Rdict:
    """Open a database that another program has written; nothing in it is changed, and no setting of it matters."""
    if not _IS_INSTALLED:
        raise FlussError(
            'Snapshots of primary-key tables are files of RocksDB, which is not installed here: pip install "flussbett'
            '[server]"'
        )
    try:
        return Rdict(os.fspath(directory), Options(raw_mode=True), access_type=AccessType.read_only())
    except Exception as error:
        raise explain(error, directory) from error


def remove_database(directory: Path) -> None:
    """Remove a database that is not open; a missing one is not an error."""
    DISK.remove_tree(directory)
    if DISK.exists(directory.parent):
        DISK.sync_directory(directory.parent)


def write_batch() -> WriteBatch:
    return WriteBatch(raw_mode=True)


def write(database: Rdict, batch: WriteBatch) -> bool:
    """Write a batch, all at once. Returns False, with nothing written, if the disk has to catch up first."""
    try:
        database.write(batch)
    except Exception as error:
        if is_stall(error):
            return False
        raise
    if number_of(database, "num-deletes-active-mem-table") > _BUFFERED_REMOVALS_MAX:
        database.flush(False)
    return True


def sst_writer(resources: KvResources, path: Path) -> SstFileWriter:
    """Return what writes an SST file. Keys have to come in their order, each once."""
    writer = SstFileWriter(options=resources.options)
    writer.open(os.fspath(path))
    return writer


def ingest(database: Rdict, path: Path) -> None:
    """Make an SST file a part of a database: its rows count as written now. The file is gone afterwards."""
    options = IngestExternalFileOptions()
    options.set_move_files(True)
    database.ingest_external_file([os.fspath(path)], options)


def scan(database: Rdict, key_first: bytes, key_end: bytes | None = None, *, fill_cache: bool = True) -> RdictIter:
    """Return an iterator over the database as it is now, standing at the first key.

    It keeps the database open until it is dropped, whatever is closed before. It does not keep ``key_end``, and has no
    copy of it: the caller has to hold this very object for as long as it uses the iterator.
    """
    reading = ReadOptions()
    if key_end is not None:
        reading.set_iterate_upper_bound(key_end)
    reading.fill_cache(fill_cache)  # type: ignore[call-arg]  # Its stub forgets the argument.
    reading.set_background_purge_on_iterator_cleanup(True)
    iterator = database.iter(reading)
    iterator.seek(key_first)
    return iterator


def next_keys(database: Rdict, key_first: bytes, key_count: int, key_end: bytes | None = None) -> list[bytes]:
    """Return up to so many keys of the database as it is now, from one on, and before another one."""
    iterator = scan(database, key_first, key_end, fill_cache=False)
    # The key is None at the end. The step returns nothing, ever.
    steps = zip(iter(iterator.key, None), iter(iterator.next, 0), strict=False)
    try:
        keys: list[bytes] = [key for key, _ in islice(steps, key_count)]
        iterator.status()
        return keys
    finally:
        # In the traceback of an error it would keep the directory locked.
        del iterator, steps


def compact(database: Rdict, key_first: bytes, key_end: bytes) -> None:
    """Merge the SST files with a range of keys, so that what was removed is gone from the disk."""
    options = CompactOptions()
    # Others go on meanwhile.
    options.set_exclusive_manual_compaction(False)
    # Otherwise a file that says no more than that a range is empty would be moved to the last level, and stay for good.
    options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
    database.compact_range(key_first, key_end, compact_opt=options)


def copy_database(database: Rdict, directory: Path) -> None:
    """Make a copy with hard links in a directory that does not exist yet; it is there as a whole or not at all."""
    Checkpoint(database).create_checkpoint(os.fspath(directory))


def number_of(database: Rdict, name: str) -> int:
    """Return a property of a database."""
    number = database.property_int_value(f"rocksdb.{name}")
    assert number is not None, f"RocksDB has no property {name}"
    return number


def is_stall(error: Exception) -> bool:
    """Tell whether a write was refused because it would have had to wait, with the GIL held."""
    return str(error).startswith(_STALL)


def explain(error: Exception, directory: Path) -> FlussError:
    """Give an error of RocksDB a type: the store is damaged, or the machine has trouble that may pass."""
    text = str(error)
    if isinstance(error, OSError) or any(mark in text for mark in _SYSTEM_ERRORS):
        is_damaged = any(mark in text for mark in _LOST)
    else:
        is_damaged = text.startswith(_DAMAGE)
    if is_damaged:
        return KvDamagedError(f"The key-value store {directory} is damaged: {text}")
    return FlussError(f"The key-value store {directory} failed: {text}", ErrorCode.KV_STORAGE_EXCEPTION)
