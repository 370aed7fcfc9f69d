"""A connection from its beginning to its end: who may use it, what closing it means, and what survives a restart.
Shown against a real server, with programs in interpreters of their own where the end of a program matters."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import fluss
from fluss import embedded
from fluss.client.kernel.runtime import wait_for

SCHEMA = fluss.Schema(pa.schema([pa.field("id", pa.int32()), pa.field("name", pa.string())]))
LOG_TABLE = fluss.TableDescriptor(SCHEMA, bucket_count=1)
KEY_TABLE = fluss.TableDescriptor(fluss.Schema(SCHEMA.to_arrow(), primary_keys=["id"]), bucket_count=1)


@pytest.fixture
def path(server: embedded.EmbeddedServer, request: pytest.FixtureRequest) -> fluss.TablePath:
    """A log table of the test's own."""
    table_path = fluss.TablePath("fluss", f"t_{abs(hash(request.node.name))}")
    with _connect(server) as connection:
        wait_for(connection.get_admin().create_table(table_path, LOG_TABLE))
    return table_path


def _connect(server: embedded.EmbeddedServer) -> fluss.FlussConnection:
    return wait_for(fluss.FlussConnection.create(server.config()))


def _ids(server: embedded.EmbeddedServer, path: fluss.TablePath) -> list[int]:
    """Read a table with a connection that has nothing to do with the one that wrote it."""
    with _connect(server) as connection:
        table = wait_for(connection.get_table(path))
        scanner = wait_for(table.new_scan().create_record_batch_log_scanner())
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        ids: list[int] = scanner.to_arrow()["id"].to_pylist()
        return ids


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "default", "-c", code], capture_output=True, text=True, timeout=600)


# Names


async def test_three_names_of_the_same_beginning(server: embedded.EmbeddedServer) -> None:
    for create in (fluss.FlussConnection.create, fluss.FlussConnection.connect, fluss.FlussConnection.new):
        connection = await create(server.config())
        assert repr(connection) == f"FlussConnection({server.bootstrap_servers!r}, open)"
        await connection.close()


def test_objects_that_only_the_client_makes(server: embedded.EmbeddedServer) -> None:
    for cls in (
        fluss.FlussConnection,
        fluss.FlussAdmin,
        fluss.FlussTable,
        fluss.TableScan,
        fluss.TableAppend,
        fluss.AppendWriter,
        fluss.TableUpsert,
        fluss.UpsertWriter,
        fluss.TableLookup,
        fluss.Lookuper,
        fluss.TablePrefixLookup,
        fluss.PrefixLookuper,
        fluss.LogScanner,
        fluss.ScanRecords,
        fluss.ScanRecord,
        fluss.RecordBatch,
        fluss.BatchScanner,
        fluss.WriteResultHandle,
    ):
        with pytest.raises(TypeError):
            cls()  # type: ignore[call-arg]


def test_the_config_is_copied_both_ways(server: embedded.EmbeddedServer) -> None:
    config = server.config(writer_acks="all")
    with wait_for(fluss.FlussConnection.create(config)) as connection:
        config.writer_acks = "0"
        assert connection.config().writer_acks == "all"
        connection.config().writer_acks = "1"
        assert connection.config().writer_acks == "all"


def test_arguments_of_the_wrong_class_are_type_errors(server: embedded.EmbeddedServer) -> None:
    with pytest.raises(TypeError, match="Config"):
        asyncio.run(fluss.FlussConnection.create(server.address))  # type: ignore[arg-type]
    with _connect(server) as connection, pytest.raises(TypeError, match="TablePath"):
        asyncio.run(connection.get_table(("fluss", "t")))  # type: ignore[arg-type]


async def test_a_cancelled_beginning_leaves_nothing_behind() -> None:
    hung_up = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        hung_up.set()
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        config = fluss.Config({"bootstrap.servers": f"127.0.0.1:{port}"})
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(fluss.FlussConnection.create(config), 0.1)
        await asyncio.wait_for(hung_up.wait(), 120)


# Tables


def test_a_table_knows_itself(server: embedded.EmbeddedServer, path: fluss.TablePath) -> None:
    with _connect(server) as connection:
        table = asyncio.run(connection.get_table(path))
        assert repr(table) == f"FlussTable(path=fluss.{path.table_name})"
        assert table.get_table_path() == table.table_path == path
        assert table.get_table_info().table_path == path
        assert table.arrow_schema == SCHEMA.to_arrow()
        assert not table.has_primary_key()
        for begin, words in (
            (table.new_upsert, "Upsert is only supported for primary key tables"),
            (table.new_lookup, "Lookup is only supported for primary key tables"),
        ):
            with pytest.raises(fluss.FlussError, match=words) as caught:
                begin()
            assert caught.value.error_code == fluss.ErrorCode.CLIENT_ERROR


def test_a_table_with_a_primary_key_is_not_appended_to(server: embedded.EmbeddedServer) -> None:
    with _connect(server) as connection:
        path = fluss.TablePath("fluss", "keyed")
        wait_for(connection.get_admin().create_table(path, KEY_TABLE))
        table = wait_for(connection.get_table(path))
        assert table.has_primary_key()
        assert [field.nullable for field in table.arrow_schema] == [False, True]
        with pytest.raises(fluss.FlussError, match="Append is only supported for log tables"):
            table.new_append()


def test_a_missing_table_is_code_7(server: embedded.EmbeddedServer) -> None:
    with _connect(server) as connection:
        for missing in (fluss.TablePath("fluss", "missing"), fluss.TablePath("missing", "t")):
            with pytest.raises(fluss.FlussError) as caught:
                asyncio.run(connection.get_table(missing))
            assert caught.value.error_code == fluss.ErrorCode.TABLE_NOT_EXIST


def test_a_table_keeps_the_schema_it_was_obtained_with(server: embedded.EmbeddedServer, path: fluss.TablePath) -> None:
    with _connect(server) as connection:
        before = wait_for(connection.get_table(path))
        wait_for(connection.get_admin().alter_table(path, add_columns=[pa.field("score", pa.float32())]))
        after = wait_for(connection.get_table(path))
        assert before.get_table_info().get_column_names() == ["id", "name"]
        assert after.get_table_info().get_column_names() == ["id", "name", "score"]


def test_a_writer_can_be_had_under_its_older_name_with_and_without_await(
    server: embedded.EmbeddedServer, path: fluss.TablePath
) -> None:
    async def main() -> None:
        connection = await fluss.FlussConnection.create(server.config())
        table = await connection.get_table(path)
        (await table.new_append_writer()).append([1, "awaited"])
        table.new_append_writer().append([2, "not awaited"])
        await connection.close()

    asyncio.run(main())
    assert _ids(server, path) == [1, 2]


# The end


def test_leaving_a_with_block_sends_what_was_written(server: embedded.EmbeddedServer, path: fluss.TablePath) -> None:
    with _connect(server) as connection:
        wait_for(connection.get_table(path)).new_append().create_writer().append([1, "x"])
    assert _ids(server, path) == [1]

    async def main() -> None:
        async with await fluss.FlussConnection.create(server.config()) as connection:
            (await connection.get_table(path)).new_append().create_writer().append([2, "x"])
        # The older guide uses a plain block inside a coroutine.
        with await fluss.FlussConnection.connect(server.config()) as connection:
            (await connection.get_table(path)).new_append().create_writer().append([3, "x"])

    asyncio.run(main())
    assert _ids(server, path) == [1, 2, 3]


def test_an_exception_leaves_a_with_block_unchanged(server: embedded.EmbeddedServer, path: fluss.TablePath) -> None:
    async def main() -> None:
        async with await fluss.FlussConnection.create(server.config()) as connection:
            (await connection.get_table(path)).new_append().create_writer().append([1, "x"])
            raise ValueError("from inside")

    with pytest.raises(ValueError, match="from inside"):
        asyncio.run(main())
    with pytest.raises(ValueError, match="from inside"), _connect(server):
        raise ValueError("from inside")
    assert _ids(server, path) == [1]


def test_closing_without_a_loop_blocks_until_everything_is_sent(
    server: embedded.EmbeddedServer, path: fluss.TablePath
) -> None:
    connection = _connect(server)
    wait_for(connection.get_table(path)).new_append().create_writer().append([1, "x"])
    connection.close()
    assert _ids(server, path) == [1]


def test_a_close_that_nobody_awaits_is_carried_out_without_a_warning(
    server: embedded.EmbeddedServer, path: fluss.TablePath
) -> None:
    async def main() -> fluss.FlussConnection:
        connection = await fluss.FlussConnection.create(server.config())
        (await connection.get_table(path)).new_append().create_writer().append([1, "x"])
        connection.close()
        return connection

    connection = asyncio.run(main())
    connection.close()
    gc.collect()
    assert _ids(server, path) == [1]


def test_a_connection_may_be_closed_again_and_by_many(server: embedded.EmbeddedServer) -> None:
    connection = _connect(server)

    async def main() -> None:
        assert await asyncio.gather(connection.close(), connection.close()) == [None, None]

    asyncio.run(main())
    threads = [threading.Thread(target=connection.close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    with connection:
        pass
    with pytest.raises(fluss.FlussError, match="non-negative"):
        connection.close(timeout_ms=-1)


def test_after_the_close_everything_raises(server: embedded.EmbeddedServer, path: fluss.TablePath) -> None:
    connection = _connect(server)
    admin = connection.get_admin()
    table = wait_for(connection.get_table(path))
    writer = table.new_append().create_writer()
    scanner = wait_for(table.new_scan().create_log_scanner())
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    connection.close()
    for call in (
        connection.get_admin,
        lambda: wait_for(connection.get_table(path)),
        lambda: wait_for(admin.list_databases()),
        lambda: wait_for(admin.get_server_nodes()),
        lambda: writer.append([1, "x"]),
        lambda: table.new_append().create_writer().append([1, "x"]),
        lambda: scanner.poll(120_000),
    ):
        with pytest.raises(fluss.FlussError, match="closed"):
            call()


def test_a_connection_without_a_server_closes_in_time(tmp_path: Path) -> None:
    with embedded.start(data_dir=tmp_path) as server:
        connection = _connect(server)
        path = fluss.TablePath("fluss", "t")
        wait_for(connection.get_admin().create_table(path, LOG_TABLE))
        writer = wait_for(connection.get_table(path)).new_append().create_writer()
        server.stop()
        handle = writer.append([1, "x"])
        with pytest.raises(fluss.FlussError):
            connection.close(timeout_ms=200)
        with pytest.raises(fluss.FlussError):
            wait_for(handle.wait())


def test_a_program_that_fails_with_an_open_connection_ends(server: embedded.EmbeddedServer) -> None:
    code = (
        "import sys; from fluss import blocking; c = blocking.connect(sys.argv[1]); c.get_admin().list_databases(); 1/0"
    )
    command = [sys.executable, "-W", "error", "-c", code, server.bootstrap_servers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"


def test_what_was_written_is_sent_before_the_program_ends(
    server: embedded.EmbeddedServer, path: fluss.TablePath
) -> None:
    code = """
        import asyncio, fluss
        async def main():
            config = fluss.Config({{"bootstrap.servers": "{address}", "writer.batch-timeout-ms": 600000}})
            conn = await fluss.FlussConnection.create(config)
            table = await conn.get_table(fluss.TablePath("fluss", "{table}"))
            writer = table.new_append().create_writer()
            writer.append([{number}, "x"])
            {end}
        asyncio.run(main())
    """
    for number, end in enumerate(("pass", "conn.close()")):
        text = code.format(address=server.address(), table=path.table_name, number=number, end=end)
        answer = _python(textwrap.dedent(text))
        assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")
    assert _ids(server, path) == [0, 1]


def test_a_forgotten_connection_without_writes_lets_go_of_its_sockets(server: embedded.EmbeddedServer) -> None:
    answer = _python(
        textwrap.dedent(
            f"""
            import asyncio, gc, os, time, fluss
            def sockets():
                links = []
                for fd in os.listdir("/proc/self/fd"):
                    try:
                        links.append(os.readlink(f"/proc/self/fd/{{fd}}"))
                    except FileNotFoundError:
                        pass
                return sum(link.startswith("socket:") for link in links)
            async def main():
                conn = await fluss.FlussConnection.create(fluss.Config({{"bootstrap.servers": "{server.address()}"}}))
                await conn.get_admin().list_databases()
            asyncio.run(main())
            gc.collect()
            before = sockets()
            for _ in range(5):
                asyncio.run(main())
            gc.collect()
            deadline = time.monotonic() + 120
            while sockets() > before and time.monotonic() < deadline:
                time.sleep(0.01)
            print(sockets() <= before)
            """
        )
    )
    assert (answer.stdout, answer.stderr) == ("True\n", "")


# Restarts


@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
def test_a_connection_outlives_a_restart_of_the_server(tmp_path: Path, process: bool) -> None:
    with embedded.start(data_dir=tmp_path, process=process) as server, _connect(server) as connection:
        admin = connection.get_admin()
        path = fluss.TablePath("fluss", "t")
        wait_for(admin.create_table(path, LOG_TABLE))
        writer = wait_for(connection.get_table(path)).new_append().create_writer()
        writer.append([1, "before"])
        wait_for(writer.flush())
        if process:
            server.kill()
        server.restart()
        assert wait_for(admin.table_exists(path))
        writer.append([2, "after"])
        wait_for(writer.flush())
        assert _ids(server, path) == [1, 2]


def test_a_table_created_anew_is_another_table(server: embedded.EmbeddedServer, path: fluss.TablePath) -> None:
    with _connect(server) as connection:
        admin = connection.get_admin()
        old = wait_for(connection.get_table(path))
        old_writer = old.new_append().create_writer()
        old_writer.append([1, "old"])
        wait_for(old_writer.flush())
        wait_for(admin.drop_table(path))
        wait_for(admin.create_table(path, LOG_TABLE))
        new = wait_for(connection.get_table(path))
        assert new.get_table_info().table_id > old.get_table_info().table_id
        new_writer = new.new_append().create_writer()
        new_writer.append([2, "new"])
        wait_for(new_writer.flush())
        assert _ids(server, path) == [2]


def test_a_connection_made_before_a_fork_is_refused_in_the_child(server: embedded.EmbeddedServer) -> None:
    answer = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-c",
            textwrap.dedent(
                f"""
                import asyncio, os, sys, fluss
                config = fluss.Config({{"bootstrap.servers": "{server.address()}"}})
                conn = asyncio.run(fluss.FlussConnection.create(config))
                child = os.fork()
                if child == 0:
                    try:
                        asyncio.run(conn.get_admin().list_databases())
                    except fluss.FlussError as error:
                        print("before the process forked" in error.message, flush=True)
                    own = asyncio.run(fluss.FlussConnection.create(config))
                    print(asyncio.run(own.get_admin().list_databases()), flush=True)
                    own.close()
                    os._exit(0)
                os.waitpid(child, 0)
                print(asyncio.run(conn.get_admin().list_databases()))
                conn.close()
                """
            ),
        ],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert answer.stderr == ""
    assert answer.stdout == "True\n['fluss']\n['fluss']\n"
