"""Reads tables that hold lies, in a process of its own: whatever happens to it is seen from outside.

Standard input is JSON: the address of the server, and for each table its name, the number of rows, and the first offset
behind the lie. Standard output is JSON: for each table and way of reading the number of rows, or the code and the text
of the FlussError. Anything else that is raised ends the process.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import fluss
from fluss.client.kernel.runtime import wait_for

ROWS_TIMEOUT_S = 120.0


def read_all(scan: fluss.TableScan, offset: int = fluss.EARLIEST_OFFSET) -> int:
    scanner = wait_for(scan.create_record_batch_log_scanner())
    scanner.subscribe(0, offset)
    table = scanner.to_arrow()
    table.validate(full=False)
    return int(table.num_rows)


def read_rows(scan: fluss.TableScan, row_count: int) -> int:
    """Look at every value of every row."""
    scanner = wait_for(scan.create_log_scanner())
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    read = 0
    deadline = time.monotonic() + ROWS_TIMEOUT_S
    while read < row_count and time.monotonic() < deadline:
        for record in scanner.poll(120_000):
            assert len(repr(dict(record.row))) > 0
            read += 1
    return read


def read_newest(table: fluss.FlussTable, row_count: int) -> int:
    bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
    scanner = table.new_scan().limit(row_count).create_bucket_batch_scanner(bucket)
    return int(wait_for(scanner.to_arrow()).num_rows)


def outcome(read: Callable[[], int]) -> int | tuple[int, str]:
    try:
        return read()
    except fluss.FlussError as error:
        return error.error_code, error.message


def read_in_every_way(table: fluss.FlussTable, row_count: int, offset_behind: int) -> dict[str, int | tuple[int, str]]:
    ways: dict[str, Callable[[], int]] = {
        "arrow": lambda: read_all(table.new_scan()),
        "rows": lambda: read_rows(table.new_scan(), row_count),
        "one column": lambda: read_all(table.new_scan().project_by_name(["id"])),
        "filtered": lambda: read_all(table.new_scan().filter(fluss.col("id") >= 0)),
        "newest": lambda: read_newest(table, row_count),
        "behind": lambda: read_all(table.new_scan(), offset_behind),
    }
    return {way: outcome(read) for way, read in ways.items()}


def main() -> None:
    order = json.load(sys.stdin)
    config = fluss.Config({"bootstrap.servers": order["bootstrap_servers"]})
    outcomes = {}
    with wait_for(fluss.FlussConnection.create(config)) as connection:
        for name, row_count, offset_behind in order["tables"]:
            table = wait_for(connection.get_table(fluss.TablePath("fluss", name)))
            outcomes[name] = read_in_every_way(table, row_count, offset_behind)
    json.dump(outcomes, sys.stdout)


if __name__ == "__main__":
    main()
