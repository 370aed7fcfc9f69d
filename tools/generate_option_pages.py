"""Write the pages of options in docs/reference from the code that defines them: ``make docs``.

A test compares the pages with what this program would write, so that they cannot fall behind.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fluss.config import Config
from fluss.options import Option
from fluss.schema.table_options import TABLE_OPTIONS, Alterable
from fluss.server.options.server_options import ServerOptions
from fluss.spark.source_options import SPARK_OPTIONS, USE_NAMES

DIRECTORY = Path(__file__).parents[1] / "docs" / "reference"

CLIENT_TOP = """\
# Client options

Every key of `fluss.Config`, for `Config({"key": value})`. Each is also a property: `config.writer_acks = "1"`.
`FlussConnection.create` checks that they fit together, before it connects. The keys of lookups are for tables with a
primary key.
"""

SERVER_TOP = """\
# Server options

Every key of a `server.yaml`, of `-D key=value`, and of the `options` of an embedded server. The environment variable
`FLUSS_` with the key in capitals and underscores means the same. The first of these counts: argument, environment,
file, default. `python -m fluss.server --print-config` shows the values, where they come from, and hides secrets.

Durations have a unit (`500ms`, `30s`, `10min`, `7d`), so have sizes (`64kb`, `1gb`; powers of 1024).
"""

TABLE_TOP = """\
# Table options

Every key for `TableDescriptor(properties={...})`. What is not in this list belongs into `custom_properties`.
*Alterable* options can be changed later with `admin.alter_table`.

Durations have a unit: `7 d`, `12 h`, `500 ms`. This server keeps one replica of each bucket, and everything on its own
disk. Options about remote storage and lakes are checked and kept all the same, for clusters that have them; a
replication factor above 1 is refused.
"""

SPARK_TOP = """\
# Spark options

Every option of the data source `fluss`, for `.option(key, value)`, for the methods of `FlussSpark`
(`scan_max_tasks=4`, or `**{"scan.max-tasks": 4}`), and for `SELECT ... FROM t WITH (...)` and `INSERT INTO t
WITH (...)`. The case of a key does not matter. An unknown option is an error, and so is one that is of no use to the
kind of query.

Beside these, every [client option](client-options.md) is taken, with or without `client.` before it;
`bootstrap.servers` is needed. `load("sales.orders")` and `save("sales.orders")` are another way to name the table.

Durations have a unit (`500ms`, `30 s`, `10 min`). Sizes are bytes, or have one (`32mb`; powers of 1024). Times are
epoch milliseconds, or such as `2026-01-01 12:30:00`.
"""

_ALTERABLE = {Alterable.NEVER: "", Alterable.ALWAYS: "yes", Alterable.PRIMARY_KEY_TABLES: "with a primary key"}


def pages() -> dict[Path, str]:
    """Return all pages by their path."""
    return {
        DIRECTORY / "client-options.md": CLIENT_TOP
        + _table(
            ("key", "property", "default", "meaning"),
            (
                (f"`{option.key}`", f"`{option.property_name}`", _default(option), option.doc)
                for option in Config.options()
            ),
        ),
        DIRECTORY / "server-options.md": SERVER_TOP
        + _table(
            ("key", "default", "meaning"),
            ((f"`{option.key}`", _default(option), option.doc) for option in ServerOptions.options()),
        ),
        DIRECTORY / "table-options.md": TABLE_TOP
        + _table(
            ("key", "default", "alterable", "meaning"),
            (
                (f"`{option.key}`", _default(option), _ALTERABLE[option.alterable], option.doc)
                for option in TABLE_OPTIONS.values()
            ),
        ),
        DIRECTORY / "spark-options.md": SPARK_TOP
        + _table(
            ("key", "default", "for", "meaning"),
            ((f"`{option.key}`", _default(option), USE_NAMES[option.uses], option.doc) for option in SPARK_OPTIONS),
        ),
    }


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = ["", _row(header), _row(("---",) * len(header)), *(_row(row) for row in rows), ""]
    return "\n".join(lines)


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _default(option: Option[Any]) -> str:
    return f"`{option.default_text}`" if option.default_text else ""


def main() -> int:
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        print(path.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
