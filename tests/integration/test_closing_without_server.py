"""Everything can be closed while the server is away, in the time that the caller gives it.
Shown with a real server in a process of its own that is stopped or killed. The request timeout is longer than any test
may take, so that a call that waits for it is noticed however slow the machine is."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
import pytest

import fluss
from fluss import aio, blocking, embedded

SCHEMA = pa.schema([("id", pa.int64())])
# What a closing call may take, and what one would take that does not know of it.
GIVEN_S = 0.2
REQUEST_TIMEOUT_S = 120
LIMIT_S = 60


class Away:
    """A server with one table of a few rows, that can be taken away."""

    def __init__(self, server: embedded.EmbeddedServer, table: str) -> None:
        self.address = server.bootstrap_servers
        self.table = table
        self._process_id = server.process_id

    def config(self, request_timeout_s: int = REQUEST_TIMEOUT_S) -> fluss.Config:
        options: dict[str, str | int] = {
            "bootstrap.servers": self.address,
            "request-timeout": request_timeout_s * 1000,
            "consumer.lease-ms": 600_000,
        }
        return fluss.Config.of(options)

    def take_away(self, how: signal.Signals) -> None:
        os.kill(self._process_id, how)

    def bring_back(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._process_id, signal.SIGCONT)


@pytest.fixture
def away() -> Iterator[Away]:
    with embedded.start(process=True) as server:
        with blocking.connect(server.bootstrap_servers) as connection:
            descriptor = blocking.TableDescriptor(blocking.Schema(SCHEMA))
            connection.get_admin().create_table("fluss.closed", descriptor)
            with connection.get_table("fluss.closed").new_append().create_writer() as writer:
                writer.append_many([{"id": number} for number in range(10)])
        away = Away(server, "fluss.closed")
        try:
            yield away
        finally:
            away.bring_back()


WAYS = pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])


@WAYS
def test_a_blocking_consumer_closes_in_time_with_one_warning(
    away: Away, how: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    connection = blocking.connect(away.config())
    consumer = connection.get_table(away.table).consumer("one", start=fluss.OffsetSpec.earliest())
    assert len(consumer.poll(30_000))
    away.take_away(how)
    with caplog.at_level(logging.WARNING, "fluss.client.consume"):
        began_s = time.monotonic()
        with pytest.raises(fluss.FlussError, match=r"not stored within 0\.2 s"):
            consumer.close(timeout=GIVEN_S)
        assert time.monotonic() - began_s < LIMIT_S
        consumer.close()
    (warning,) = [record for record in caplog.records if record.name.startswith("fluss.client.consume")]
    assert "consumer 'one' of fluss.closed could not leave its group" in warning.getMessage()
    began_s = time.monotonic()
    with suppress(fluss.FlussError):
        connection.close(timeout=GIVEN_S)
    assert time.monotonic() - began_s < LIMIT_S


@WAYS
def test_a_consumer_closes_within_the_request_timeout_if_nothing_is_said(away: Away, how: signal.Signals) -> None:
    connection = blocking.connect(away.config(request_timeout_s=1))
    consumer = connection.get_table(away.table).consumer("one", start=fluss.OffsetSpec.earliest())
    assert len(consumer.poll(30_000))
    away.take_away(how)
    began_s = time.monotonic()
    with pytest.raises(fluss.FlussError, match="not stored within 1 s"):
        consumer.close()
    with suppress(fluss.FlussError):
        connection.close(timeout=GIVEN_S)
    assert time.monotonic() - began_s < LIMIT_S


def test_closing_refuses_times_that_are_none(away: Away) -> None:
    with blocking.connect(away.config()) as connection:
        consumer = connection.get_table(away.table).consumer("one", start=fluss.OffsetSpec.earliest())
        assert len(consumer.poll(30_000))
        with pytest.raises(fluss.FlussError, match="timeout"):
            consumer.close(timeout=-1)
        with pytest.raises(TypeError, match="timeout"):
            consumer.close(timeout="5 s")  # type: ignore[arg-type]
        # It is still open, and closes when it is asked properly.
        consumer.commit()
        consumer.close(timeout=30)


@WAYS
async def test_a_consumer_of_aio_closes_in_time(away: Away, how: signal.Signals) -> None:
    connection = await aio.connect(away.config())
    consumer = (await connection.get_table(away.table)).consumer("one", start=fluss.OffsetSpec.earliest())
    assert len(await consumer.poll(30_000))
    away.take_away(how)
    began_s = time.monotonic()
    with pytest.raises(fluss.FlussError, match="not stored within"):
        await consumer.close(timeout=GIVEN_S)
    with suppress(fluss.FlussError):
        await connection.close(timeout=GIVEN_S)
    assert time.monotonic() - began_s < LIMIT_S


@WAYS
async def test_a_consumer_of_the_default_style_closes_in_time(away: Away, how: signal.Signals) -> None:
    connection = await fluss.connect(away.config())
    consumer = (await connection.get_table(away.table)).consumer("one", start=fluss.OffsetSpec.earliest())
    assert len(await consumer.poll_async(30_000))
    away.take_away(how)
    began_s = time.monotonic()
    with pytest.raises(fluss.FlussError, match="not stored within"):
        await consumer.close_async(timeout=GIVEN_S)
    with suppress(fluss.FlussError):
        await connection.close(timeout=GIVEN_S)
    assert time.monotonic() - began_s < LIMIT_S


@WAYS
def test_scanners_and_connections_with_unsent_rows_close_in_time(away: Away, how: signal.Signals) -> None:
    connection = blocking.connect(away.config())
    table = connection.get_table(away.table)
    scanner = table.new_scan().create_log_scanner()
    scanner.subscribe(0, 0)
    assert len(scanner.poll(30_000))
    writer = table.new_append().create_writer()
    away.take_away(how)
    writer.append({"id": 11})
    began_s = time.monotonic()
    scanner.close()
    with pytest.raises(fluss.FlussError):
        writer.flush(timeout=GIVEN_S)
    with pytest.raises(fluss.FlussError):
        connection.close(timeout=GIVEN_S)
    assert time.monotonic() - began_s < LIMIT_S


@WAYS
async def test_connections_of_the_async_styles_close_in_time(away: Away, how: signal.Signals) -> None:
    for connect in (fluss.connect, aio.connect):
        connection = await connect(away.config())
        writer = (await connection.get_table(away.table)).new_append().create_writer()
        scanner = await (await connection.get_table(away.table)).new_scan().create_log_scanner()
        away.take_away(how)
        writer.append({"id": 11})
        began_s = time.monotonic()
        scanner.close()
        with pytest.raises(fluss.FlussError):
            await connection.close(timeout=GIVEN_S)
        assert time.monotonic() - began_s < LIMIT_S
        if how is signal.SIGKILL:
            break
        away.bring_back()
