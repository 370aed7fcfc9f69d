"""The Java client, driven from here: requests and answers are lines of JSON, see ``programs/Peer.java``."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, Self

from fluss.schema.types import DataType
from tests.java.jars import program_class_path

_CALL_TIMEOUT_S: Final = 300.0
_EPOCH: Final = datetime(1970, 1, 1)
_OPENED: Final = "--add-opens=java.base/java.nio=ALL-UNNAMED"


class JavaClientError(Exception):
    """What the Java client has raised: the name of the exception and its text."""


class JavaPeer:
    """A connection of the Java client in a process of its own. A context manager that closes it."""

    def __init__(self, bootstrap_servers: str, settings: Mapping[str, str] | None = None) -> None:
        named = {"bootstrap.servers": bootstrap_servers, **(settings or {})}
        command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", _OPENED]
        command += ["-cp", program_class_path(), "Peer", *(f"{key}={value}" for key, value in named.items())]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, encoding="utf-8"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def call(self, name: str, **arguments: Any) -> Any:
        """Ask for something; raises JavaClientError with what the client said."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watchdog = threading.Timer(_CALL_TIMEOUT_S, self._process.kill)
        watchdog.start()
        try:
            self._process.stdin.write(json.dumps({"do": name, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = ""
        finally:
            watchdog.cancel()
        if not line:
            raise AssertionError(f"the Java client ended, or did not answer {name!r} in time:\n{self.last_words}")
        answer = json.loads(line)
        if "error" in answer:
            raise JavaClientError(f"{answer['error']}\n{self.last_words}")
        return answer["result"]

    @property
    def last_words(self) -> str:
        """The end of what the client has logged, with the stack traces of its errors."""
        self._log.seek(0)
        return self._log.read()[-8000:].decode(errors="replace")

    # The calls that tests make

    def create_table(
        self,
        table: str,
        columns: Mapping[str, str],
        *,
        keys: Sequence[str] = (),
        buckets: int = 1,
        bucket_keys: Sequence[str] = (),
        partition_keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.call(
            "create_table",
            table=table,
            columns=dict(columns),
            keys=list(keys),
            buckets=buckets,
            bucket_keys=list(bucket_keys),
            partition_keys=list(partition_keys),
            properties=dict(properties or {}),
        )

    def append(self, table: str, rows: Sequence[Sequence[Any]]) -> int:
        return int(self.call("append", table=table, rows=list(rows)))

    def upsert(self, table: str, rows: Sequence[Sequence[Any]]) -> int:
        return int(self.call("upsert", table=table, rows=list(rows)))

    def delete(self, table: str, rows: Sequence[Sequence[Any]]) -> int:
        return int(self.call("delete", table=table, rows=list(rows)))

    def lookup(self, table: str, keys: Sequence[Sequence[Any]]) -> list[list[Any] | None]:
        """Return the row of each key, None where there is none."""
        found = self.call("lookup", table=table, keys=list(keys))
        return [rows[0] if rows else None for rows in found]

    def prefix_lookup(self, table: str, columns: Sequence[str], keys: Sequence[Sequence[Any]]) -> list[list[Any]]:
        found: list[list[Any]] = self.call("prefix_lookup", table=table, columns=list(columns), keys=list(keys))
        return found

    def read(self, table: str, count: int) -> list[tuple[int | None, int, int, str, list[Any]]]:
        """Return so many records, or what there is: partition, bucket, offset, change, row."""
        return [tuple(record) for record in self.call("read", table=table, count=count)]

    def read_snapshots(self, table: str) -> dict[int, tuple[int, list[list[Any]]]]:
        """Return offset and rows of the latest snapshot of each bucket, as the client reads its files."""
        return {bucket: (offset, rows) for bucket, offset, rows in self.call("read_snapshots", table=table)}


def to_java(value: Any, data_type: DataType) -> Any:
    """Return a value as ``Peer`` takes it and gives it back."""
    if value is None:
        return None
    match value:
        case bool() | str() | float():
            return value
        case int():
            return value
        case bytes():
            return value.hex()
        case Decimal():
            return f"{value:f}"
        case datetime():
            micros = (value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value) - _EPOCH
            millis, rest = divmod(micros, timedelta(milliseconds=1))
            return [millis, rest // timedelta(microseconds=1) * 1000]
        case date():
            return (value - _EPOCH.date()).days
        case time():
            return ((value.hour * 60 + value.minute) * 60 + value.second) * 1000 + value.microsecond // 1000
    raise TypeError(f"{value!r} of the type {data_type} is not known here")
