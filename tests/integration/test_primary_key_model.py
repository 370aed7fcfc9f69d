"""A primary-key table does what a dict does: random changes, reads, restarts and crashes, for every merge engine.

The server is a process of its own; its changelog, replayed from the beginning, always gives the rows that lookups give.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import fluss
from fluss import blocking, embedded
from tests.integration.key_model import ENGINES, KEY, NUMBER, TEXT, Engine, Row, TableModel, replayed

# As `make model` says; lives of tables are long, so a few are enough for `make test`.
EXAMPLES = int(os.environ.get("EXAMPLES", "4"))
STEPS = 25
# Without a search for what a failure has in common with others: steps are slow, since servers are started in them.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)
BUCKETS = 2
KEYS = st.integers(0, 5)
RESTARTS_MAX = 2
ADDED_COLUMNS_MAX = 2

TEXTS = st.none() | st.sampled_from(["", "x", "grüße", "a longer text"])
NUMBERS = st.none() | st.integers(-3, 3) | st.just(2**63 - 1)

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedded.EmbeddedServer]:
    with embedded.start(data_dir=tmp_path_factory.mktemp("model"), process=True) as running:
        yield running


@pytest.mark.hypothesis
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_a_table_does_what_its_model_does(server: embedded.EmbeddedServer, engine: Engine) -> None:
    run_state_machine_as_test(
        lambda: KeyedTable(server, engine),
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            phases=PHASES,
            suppress_health_check=list(HealthCheck),
        ),
    )


class KeyedTable(RuleBasedStateMachine):
    """One table, written and read through every way there is."""

    def __init__(self, server: embedded.EmbeddedServer, engine: Engine) -> None:
        super().__init__()
        self._server = server
        self._model = TableModel(engine)
        self._path = fluss.TablePath("fluss", f"model_{next(_numbers)}")
        self._restarts = 0
        # The table in each of its schemas, the oldest first: writers and readers from before go on.
        self._tables: list[blocking.FlussTable] = []
        # However long a busy machine takes for an answer: what is shown is which rows there are.
        config = server.config(writer_batch_timeout_ms=1, request_timeout_ms=600_000)
        self._connection = blocking.FlussConnection.create(config)

    @initialize()
    def create(self) -> None:
        schema = fluss.Schema(
            pa.schema([(KEY, pa.int32()), (TEXT, pa.string()), (NUMBER, pa.int64())]),
            primary_keys=[KEY],
            aggregations=self._model.engine.aggregations,
        )
        descriptor = fluss.TableDescriptor(schema, bucket_count=BUCKETS, properties=self._model.engine.properties)
        self._connection.get_admin().create_table(self._path, descriptor)
        self._tables.append(self._connection.get_table(self._path))

    def teardown(self) -> None:
        if self._tables:
            self.the_changelog_leads_to_the_same_rows()
        self._connection.close()

    # Changes

    @rule(data=st.data(), keys=st.lists(KEYS, min_size=1, max_size=8), as_arrow=st.booleans())
    def upsert(self, data: st.DataObject, keys: list[int], as_arrow: bool) -> None:
        table = data.draw(st.sampled_from(self._tables))
        names = table.arrow_schema.names[1:]
        rows = [self._row(data, key, names) for key in keys]
        with table.new_upsert().create_writer() as writer:
            if as_arrow:
                writer.upsert_arrow(pa.Table.from_pylist(rows, schema=table.arrow_schema))
            else:
                for row in rows:
                    writer.upsert(row)
        for row in rows:
            # A whole row of an older schema is a whole row: it has null in the columns that it does not know.
            self._model.upsert(row, None)

    @rule(data=st.data(), keys=st.lists(KEYS, min_size=1, max_size=6), as_arrow=st.booleans())
    def delete(self, data: st.DataObject, keys: list[int], as_arrow: bool) -> None:
        table = data.draw(st.sampled_from(self._tables))
        with table.new_upsert().create_writer() as writer:
            if as_arrow:
                writer.delete_arrow(pa.table({KEY: pa.array(keys, pa.int32())}))
            else:
                for key in keys:
                    writer.delete({KEY: key})
        for key in keys:
            self._model.delete(key, None)

    @precondition(lambda self: self._model.engine.takes_partial_updates)
    @rule(data=st.data(), changes=st.lists(st.tuples(KEYS, st.booleans()), min_size=1, max_size=8))
    def change_some_columns(self, data: st.DataObject, changes: list[tuple[int, bool]]) -> None:
        """Upsert and delete with a writer of some columns; ``changes`` are keys and whether to delete."""
        table = data.draw(st.sampled_from(self._tables))
        targets = [KEY, *data.draw(st.lists(st.sampled_from(table.arrow_schema.names[1:]), unique=True))]
        is_whole = len(targets) == len(table.arrow_schema.names)
        rows = [None if is_delete else self._row(data, key, targets[1:]) for key, is_delete in changes]
        with table.new_upsert().partial_update_by_name(targets).create_writer() as writer:
            for (key, _), row in zip(changes, rows, strict=True):
                if row is None:
                    writer.delete([key])
                else:
                    writer.upsert(row)
        is_newest = table is self._tables[-1]
        for (key, _), row in zip(changes, rows, strict=True):
            # All columns there are: then nothing is partial about it.
            columns = None if is_whole and is_newest else targets
            if row is None:
                self._model.delete(key, columns)
            else:
                self._model.upsert(row, columns)

    @precondition(lambda self: not self._model.engine.takes_partial_updates)
    @rule(key=KEYS)
    def a_partial_update_is_refused(self, key: int) -> None:
        writer = self._tables[-1].new_upsert().partial_update_by_name([KEY, TEXT]).create_writer()
        with pytest.raises(fluss.FlussError):
            writer.upsert({KEY: key, TEXT: "no"}).wait()

    @rule(data=st.data(), keys=st.lists(KEYS, min_size=1, max_size=3))
    def upsert_and_delete_in_one_go(self, data: st.DataObject, keys: list[int]) -> None:
        table = self._tables[-1]
        with table.new_upsert().create_writer() as writer:
            for key in keys:
                row = self._row(data, key, table.arrow_schema.names[1:])
                writer.upsert(row)
                self._model.upsert(row, None)
                if data.draw(st.booleans()):
                    writer.delete([key])
                    self._model.delete(key, None)

    @precondition(lambda self: len(self._tables) <= ADDED_COLUMNS_MAX)
    @rule()
    def add_a_column(self) -> None:
        name = f"c{len(self._tables)}"
        column = fluss.Column(name, fluss.DataTypes.string())
        self._connection.get_admin().alter_table(self._path, add_columns=[column])
        self._tables.append(self._connection.get_table(self._path))
        self._model.add_column(name)

    # The life of the server

    @precondition(lambda self: self._restarts < RESTARTS_MAX)
    @rule(is_crash=st.booleans())
    def restart(self, is_crash: bool) -> None:
        self._restarts += 1
        if is_crash:
            self._server.kill()
        self._server.restart()

    # Reads

    @rule(key=st.integers(0, 6), data=st.data())
    def look_one_up(self, key: int, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from(self._tables))
        found = table.new_lookup().create_lookuper().lookup({KEY: key})
        assert found == self._seen_by(table, self._model.rows.get(key))

    @rule()
    def rows_are_those_of_the_model(self) -> None:
        found = {row[KEY]: row for row in self._tables[-1].to_arrow().to_pylist()}
        assert found == self._model.rows

    @rule()
    def the_changelog_leads_to_the_same_rows(self) -> None:
        ends = self._connection.get_admin().list_offsets(self._path, range(BUCKETS), fluss.OffsetSpec.latest())
        scanner = self._tables[-1].new_scan().create_changelog_scanner()
        scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
        changelog = scanner.to_arrow()
        assert changelog.num_rows <= sum(ends.values())
        records = [(row.pop("_change_type"), row) for row in changelog.to_pylist()]
        for _, row in records:
            del row["_log_offset"], row["_commit_timestamp"]
        assert replayed(records, self._model.engine.has_old_rows) == self._model.rows

    @invariant()
    def lookups_agree_with_the_model(self) -> None:
        if self._tables:
            lookuper = self._tables[-1].new_lookup().create_lookuper()
            found = lookuper.lookup_many([{KEY: key} for key in range(6)], missing="drop")
            assert {row[KEY]: row for row in found.to_pylist()} == self._model.rows

    def _row(self, data: st.DataObject, key: int, names: list[str]) -> Row:
        values: dict[str, Any] = {name: data.draw(NUMBERS if name == NUMBER else TEXTS) for name in names}
        return {KEY: key, **values}

    def _seen_by(self, table: blocking.FlussTable, row: Row | None) -> Row | None:
        return None if row is None else {name: row[name] for name in table.arrow_schema.names}
