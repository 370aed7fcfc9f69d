"""Tables of the lake: Iceberg tables that mirror Fluss tables, through pyiceberg, without Spark and without a server.

| module | what it is |
|---|---|
| ``schema_mapping`` | a Fluss table as columns, partitions, order and properties of an Iceberg table |
| ``arrow_conversion`` | batches of a Fluss table in the types of its lake table, with the system columns |
| ``catalogs`` | a catalog of any kind from properties; ``directory_catalog`` is the one that needs no service |
| ``lake_tables`` | creating and altering the tables of a lake, by the rules that go with Fluss tables |
| ``data_files`` | Parquet files from Arrow, where a task writes them: rows, deletes by position, deletes by key |
| ``commits`` | one snapshot of such files: append, row delta, replace; made on one state of the table or not at all |
| ``scans`` | what a snapshot has, by partition and bucket, and its rows with all deletes applied |
| ``fluss_rows`` | the same rows as the Fluss table has them; ``pruning`` is what a filter tells the lake |
| ``key_set`` | which rows have one of these keys; ``key_positions`` says where they are in data files |
| ``maintenance`` | expired snapshots and forgotten files, deleted |

A tiering round writes with ``DataFileWriter`` and ``write_position_deletes`` in tasks, sends the files that come out to
the driver, which are small and can be pickled, and commits there with ``commit_files``.
"""

try:
    import pyiceberg as _pyiceberg  # noqa: F401
except ImportError as error:
    raise ImportError(
        'fluss.lake needs pyiceberg, which is not installed here: pip install "flussbett[lake]"'
    ) from error
