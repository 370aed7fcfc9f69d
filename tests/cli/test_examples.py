"""Every example in the help of the commands is run as it stands there, and shows something that makes sense.

These are the lines of `docs/reference/command-line.md`, too. Each belongs to a scenario: a server, some files, and
lines in an order in which they find what they need. What needs no shell is run in processes of its own, at a terminal
or through pipes; what has pipes or redirections is run by bash. The jobs of Spark are in `tests/spark`.
"""

from __future__ import annotations

import gzip
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from fluss import Schema, TableDescriptor, blocking
from fluss.cli.app import root
from fluss.embedded import EmbeddedServer
from fluss.testing.certificates import ThrowawayCa
from fluss.testing.waiting import eventually
from tests.cli.help_examples import examples
from tests.cli.runner import FlussCommand
from tests.pages import ROOT
from tests.s3_server import KEYS, new_bucket, s3_server

CTRL_C = "\x03"
INTERRUPTED = 130
TRIPS = {"id": [1, 2, 3, 4], "city": ["Bonn", "Kiel", "Jena", "Kiel"], "km": [3.5, 12.0, 1.5, 8.0]}
RIGHTS = {
    "authorizer.enabled": "true",
    "super.users": "User:ANONYMOUS",
}


@dataclass(frozen=True)
class Example:
    """A line of the help, and what it does.

    ``shows`` is a pattern that what it prints has in it. ``before`` are lines that no help has, and that make what the
    example needs. With ``types`` it is run at a terminal: each text is typed when its pattern has been shown.
    ``instead`` puts an address, port or directory of the test in the place of one that only an example has.
    """

    line: str
    shows: str
    before: Sequence[str | Callable[[Place], None]] = ()
    types: Sequence[tuple[str, str]] = ()
    code: int = 0
    instead: Mapping[str, str] = field(default_factory=dict)


def _until(shown: str) -> Sequence[tuple[str, str]]:
    return [(shown, CTRL_C)]


LOG_TRIPS = "fluss table create trips -c 'id BIGINT' -c 'city STRING' -c 'km DOUBLE' --buckets 1"
SOME_TRIPS = "fluss load trips.parquet trips"
USERS = "fluss table create users -c 'id BIGINT' -c 'name STRING' -k id --buckets 1"
PRICED = "fluss table create sales.orders -c 'id BIGINT' -c 'price DOUBLE' -k id --buckets 1"
DAILY = "fluss table create sales.orders -c 'id BIGINT' -c 'day STRING' -c 'price DOUBLE' -k id,day --buckets 1"


def _asked(whose: str) -> Sequence[tuple[str, str]]:
    return [(f"Password of {whose}: ", "alice-secret\n"), ("Repeat for confirmation: ", "alice-secret\n")]


SCENARIOS: dict[str, Sequence[Example]] = {
    "databases": [
        Example("fluss db create sales", "Created the database sales"),
        Example("fluss db ls", r"(?s)fluss .*sales "),
        Example("fluss db ls --format json | jq -r .database", r"fluss\nsales"),
        Example("fluss db show sales", "sales"),
        Example("fluss db drop sales --cascade --yes", "Dropped"),
        Example("fluss db create sales --comment 'all orders'", "Created the database sales"),
    ],
    "tables": [
        Example(
            "fluss table create trips -c 'id BIGINT' -c 'city STRING' -c 'km DOUBLE'",
            "Created",
            before=["fluss db create sales"],
        ),
        Example(
            "fluss table create sales.orders -c 'id BIGINT' -c 'day STRING' --primary-key id,day --partition-by day",
            "Created",
        ),
        Example("fluss table ls", r"fluss\.trips\nsales\.orders"),
        Example("fluss table ls sales --format json", '"sales.orders"'),
        Example("fluss table show sales.orders", "day"),
        Example("fluss table show sales.orders --sql > orders.sql", "", before=["rm -f orders.sql"]),
        Example("fluss table stats sales.orders", "0 rows"),
        Example("fluss table drop sales.orders --yes", "Dropped"),
        Example("fluss table create --sql - < orders.sql", "Created"),
        Example(
            'fluss table create --sql "CREATE TABLE sales.orders (id BIGINT, note STRING, PRIMARY KEY (id))"',
            "Created",
            before=["fluss table drop sales.orders --yes"],
        ),
        Example("fluss table stats sales.orders --format json", '"bucket": ?0'),
        Example(
            "fluss table create trips --from trips.parquet --primary-key id --buckets 4",
            "Created",
            before=["fluss table drop trips --yes"],
        ),
        Example(
            "fluss table create trips --from trips.parquet     # a table with the columns of a file",
            "Created",
            before=["fluss table drop trips --yes"],
        ),
        Example(
            "fluss table alter orders --add 'note STRING'",
            "Altered|Changed",
            before=["fluss table create orders -c 'id BIGINT' --property owner=ada"],
        ),
        Example("fluss table alter orders --set table.log.ttl=7d --reset owner", "Altered|Changed"),
        Example("fluss table show orders", "note"),
        Example(
            "fluss table create orders -c 'id BIGINT' -c 'price DECIMAL(10, 2)' --primary-key id",
            "Created",
            before=["fluss table drop orders --yes"],
        ),
    ],
    "partitions": [
        Example(
            "fluss partition add sales.orders day=2026-01-31 region=EU",
            "Added",
            before=[
                "fluss db create sales",
                "fluss table create sales.orders -c 'day STRING' -c 'region STRING' --partition-by day,region",
            ],
        ),
        Example("fluss partition ls sales.orders", "2026-01-31"),
        Example("fluss partition ls sales.orders region=EU", "2026-01-31"),
        Example(
            "fluss partition add sales.orders day=2026-01-31",
            "Added",
            before=[
                "fluss table drop sales.orders --yes",
                "fluss table create sales.orders -c 'day STRING' --partition-by day",
            ],
        ),
        Example("fluss partition drop sales.orders day=2026-01-31 --yes", "Dropped"),
    ],
    "rows": [
        Example("fluss load trips.parquet trips", "4 rows", before=[LOG_TRIPS]),
        Example("zcat trips.csv.gz | fluss load - trips --file-format csv", "4 rows"),
        Example('echo \'{"id": 1, "city": "Bonn", "km": 3.5}\' | fluss append trips', "1 row"),
        Example("fluss head trips", "Bonn"),
        Example("fluss head trips -n 3 --filter \"city = 'Bonn'\" --format json", r'(?s)("city": "Bonn".*){3}'),
        Example("fluss tail trips", "Bonn"),
        Example("fluss tail -f trips --filter 'km > 5'", "Kiel", types=_until("Kiel"), code=INTERRUPTED),
        Example(
            "fluss tail -f trips --filter 'km > 5' --columns city,km", "Kiel", types=_until("Kiel"), code=INTERRUPTED
        ),
        Example("fluss tail trips --from earliest -n 1000 --format json", r"(?s)(Kiel.*){4}"),
        Example("fluss tail -f trips --from 10min --positions", "Kiel", types=_until("Kiel"), code=INTERRUPTED),
        Example("fluss offsets trips", "(?m)^ *0 .*9"),
        Example("fluss offsets trips --at 1h --format json", "{"),
        Example("fluss dump trips trips.parquet", "9 rows", before=["rm trips.parquet"]),
        Example(
            "fluss load 2026-*.csv sales.orders --rejects bad.jsonl",
            "2 rows",
            before=["fluss db create sales", PRICED],
        ),
        Example(
            "fluss load big.parquet sales.orders --resume big.state     # after an interruption: the same once more",
            "rows",
        ),
        Example(
            "fluss dump sales.orders - --file-format csv --columns id,price --filter 'price > 10' | head",
            "id,price",
        ),
        # What follows a file does not end on its own: it is ended when its rows are in the table.
        Example(
            "tail -f events.jsonl | fluss append events --rejects bad.jsonl",
            "1 row",
            before=["fluss table create events -c 'id BIGINT'"],
        ),
    ],
    "keys": [
        Example("fluss put users id=17 name=Ada", "1 row", before=[USERS]),
        Example("fluss get users 17", "Ada"),
        Example('fluss put users \'{"id": 17, "name": "Ada"}\' \'{"id": 18, "name": "Bob"}\'', "2 rows"),
        Example("fluss put users --partial id=17 name=Grace              # other columns stay as they are", "1 row"),
        Example("fluss put users < users.jsonl", "2 rows"),
        Example("fluss delete users 17 18", "2"),
        Example("fluss delete users < keys.txt", "2"),
        Example(
            "fluss get sales.orders 17,2026-01-31 18,2026-01-31      # a key of two columns",
            r"(?s)17.*18",
            before=[
                "fluss db create sales",
                DAILY,
                "fluss put sales.orders id=17 day=2026-01-31 price=1",
                "fluss put sales.orders id=18 day=2026-01-31 price=2",
            ],
        ),
        Example('fluss get sales.orders \'{"id": 17, "day": "2026-01-31"}\' --format json', '"price": 1'),
        Example("fluss delete sales.orders 17,2026-01-31", "1"),
        Example(
            "fluss get sales.items 17 --prefix order_id              # all rows whose key begins so",
            r"(?s)17 .*17 ",
            before=[
                "fluss table create sales.items -c 'order_id BIGINT' -c 'n INT' -k order_id,n --bucket-key order_id",
                "fluss put sales.items order_id=17 n=1",
                "fluss put sales.items order_id=17 n=2",
            ],
        ),
    ],
    "sql": [
        Example(
            'fluss sql "SELECT city, sum(km) FROM trips GROUP BY city"', r"Kiel +20", before=[LOG_TRIPS, SOME_TRIPS]
        ),
        Example(
            'fluss sql "SELECT * FROM sales.orders WHERE id = 17"            # by key: nothing is scanned',
            "17",
            before=["fluss db create sales", PRICED, "fluss put sales.orders id=17 price=1.5"],
        ),
        Example("fluss sql \"SELECT * FROM trips JOIN 'cities.parquet' USING (city)\" --output joined.parquet", "rows"),
        Example(
            r"fluss sql                                                       # a shell; \? shows its commands",
            r"\\d",
            types=[("> ", "\\?\n"), ("or Ctrl-D", "\\q\n")],
        ),
    ],
    "consumers": [
        Example("fluss consumers trips", "billing", before=[LOG_TRIPS, SOME_TRIPS, lambda place: place.consume()]),
        Example("fluss lag trips", "billing"),
        Example("fluss lag trips billing --format json", '"billing"'),
        Example("fluss consumers trips --drop billing --yes", "billing"),
    ],
    "cluster": [
        Example("fluss health", "green"),
        Example("fluss health --format json", '"green"'),
        Example(
            "fluss top",
            "sales.orders",
            before=["fluss db create sales", PRICED],
            types=_until("Ctrl-C ends this"),
            code=INTERRUPTED,
        ),
        Example("fluss top sales --every 1", "sales.orders", types=_until("Ctrl-C ends this"), code=INTERRUPTED),
        Example("fluss top --count 2 --format json          # two looks, for a script", '"rate": 0.0'),
        Example("fluss config get", "log.segment.file-size"),
        Example("fluss config get log.segment.file-size --format json", '"log.segment.file-size"'),
        Example("fluss config set quota.produce.bytes-per-second=20mb", "quota.produce"),
        Example("fluss config set --reset quota.produce.bytes-per-second", "quota.produce"),
        Example("fluss config explain table.log.ttl", "table.log.ttl"),
        Example("fluss config explain log.ttl", "table.log.ttl"),
        Example("fluss config explain timeout", "request-timeout"),
        Example("fluss config explain --of client", "bootstrap.servers"),
    ],
    "rights": [
        Example(
            "fluss acl grant alice read,write --table sales.orders",
            "alice",
            before=["fluss db create sales", PRICED],
        ),
        Example("fluss acl grant '*:*' describe --cluster", "describe"),
        Example("fluss acl ls", "(?s)alice.*write"),
        Example("fluss acl ls --for alice --table sales.orders", "(?s)alice.*write"),
        Example("fluss acl ls --database sales", "alice", before=["fluss acl grant alice all --database sales"]),
        Example("fluss acl revoke alice write --table sales.orders", "Revoked 1 right"),
        Example("fluss acl revoke alice --database sales", "Revoked 1 right"),
    ],
    "users": [
        Example("fluss user hash", r"SCRAM-SHA-256\$", types=_asked("the user")),
        Example("echo secret | fluss user hash alice", r"alice:SCRAM-SHA-256\$"),
        Example("fluss user add alice --file users", "Added alice", types=_asked("alice")),
        Example("echo secret | fluss user add alice --file users", "alice"),
        Example("fluss user ls --file users", "alice"),
        Example("fluss user rm alice --file users", "Removed alice"),
    ],
    "two clusters": [
        Example(
            "fluss copy sales --from localhost:9123 --to streams.example.org:9123",
            "orders",
            before=[
                "fluss db create sales",
                PRICED,
                "fluss put sales.orders id=1 price=2.5",
                "fluss table create sales.items -c 'id BIGINT'",
            ],
            instead={"localhost:9123": "{server}", "streams.example.org:9123": "{other}"},
        ),
        Example(
            "fluss copy sales.orders sales.orders_2025 --from dev --to prod        # profiles",
            "orders_2025",
            before=["fluss profile add dev --server {server}", "fluss profile add prod --server {other}"],
        ),
        Example("fluss copy sales --to prod --tables orders,items --format json", '"sales.orders"'),
    ],
    "profiles": [
        Example("fluss profile add dev --server localhost:9200", "dev"),
        Example(
            "fluss profile add prod --server streams.example.org:9123 --user alice --ca ca.pem",
            "prod",
            types=[("Password: ", "alice-secret\n")],
        ),
        Example(
            "fluss profile add ci --server streams:9123 --user ci --password-file /run/secrets/fluss",
            "ci",
            instead={"/run/secrets/fluss": "password"},
        ),
        Example("fluss profile ls", "(?s)ci.*dev.*prod"),
        Example("fluss profile use prod", "prod"),
        Example("fluss profile rm prod", "Removed the profile prod"),
        Example(
            "fluss profile add prod --server streams.example.org:9123 --user alice --tls",
            "prod",
            types=[("Password: ", "alice-secret\n")],
        ),
        Example(
            "fluss table ls --profile prod",
            r"fluss\.trips",
            before=["fluss profile add prod --server {server}", LOG_TRIPS],
        ),
    ],
    "completion": [
        Example('eval "$(fluss completion bash)"                                   # in ~/.bashrc', ""),
        # There may be no such shell: what it would evaluate is shown.
        Example(
            'eval "$(fluss completion zsh)"                                    # in ~/.zshrc',
            "#compdef fluss",
            instead={'eval "$(fluss completion zsh)"': "fluss completion zsh"},
        ),
        Example("fluss completion fish > ~/.config/fish/completions/fluss.fish", ""),
    ],
    # Ports are free ones: those of the examples may be in use.
    "servers": [
        Example("fluss serve", " ready on ", types=_until(" ready on "), instead={"serve": "serve --port 0"}),
        Example(
            "fluss serve --http                                          # with a page at http://127.0.0.1:9180",
            "page at http",
            types=_until("page at http"),
            instead={"--http ": "--http 0 --port 0 "},
        ),
        Example("fluss serve --data-dir ./data --port 9200 --detach", "A server runs on", instead={"9200": "0"}),
        Example("fluss status --data-dir ./data --format json", '"running"'),
        Example("fluss stop --data-dir ./data", "Stopped"),
        Example(
            "fluss serve --config server.yaml -D log.segment.file-size=256mb", " ready on ", types=_until(" ready on ")
        ),
        Example(
            "fluss serve --detach                              # a server on this machine",
            "A server runs on",
            instead={"--detach": "--detach --port 0"},
        ),
        Example("fluss status", "running"),
        Example("fluss stop", "Stopped"),
    ],
    "files": [
        Example("fluss log verify ./data", "all are well", before=[lambda place: place.leave_data()]),
        Example("fluss log verify ./data/sales --format json", r'"damaged": \[\]'),
        Example("fluss log show data/sales/orders-3/log-0", "(?s)OFFSET.*0"),
        Example("fluss log show data/sales/orders-3/log-0/00000000000000000000.log -n 3 --format json", '"records"'),
        Example("fluss kv verify ./data", "all are well"),
        Example(
            "fluss log verify ~/.local/share/fluss/data",
            "all are well",
            before=["mkdir -p ~/.local/share/fluss", "cp -r data ~/.local/share/fluss/data"],
        ),
        Example("fluss kv verify ~/.local/share/fluss/data", "all are well"),
    ],
    "backups": [
        Example(
            "fluss backup verify /mnt/archive",
            "complete",
            before=[lambda place: place.back_up()],
            instead={"/mnt/archive": "archive"},
        ),
        Example(
            "fluss backup restore /mnt/archive --data-dir ./new-data",
            " ready on ",
            types=_until(" ready on "),
            instead={"/mnt/archive": "archive", "./new-data": "./new-data --port 0"},
        ),
    ],
}
# Each takes longer than all of the others: a measurement is as long as the line says.
LONG: dict[str, Sequence[Example]] = {
    "bench": [
        Example("fluss bench", r"append in batches +\d"),
        Example("fluss bench --seconds 10 --row-bytes 1000 --format json", "look up one key"),
    ],
    "object store": [
        Example(
            "fluss backup verify s3://bucket/fluss --config server.yaml",
            "complete",
            before=[lambda place: place.back_up_in_object_store()],
            instead={"s3://bucket/fluss": "{bucket}"},
        ),
    ],
}


def test_every_example_is_in_a_scenario() -> None:
    written = set(examples(root))
    run_here = {each.line for scenario in (*SCENARIOS.values(), *LONG.values()) for each in scenario}
    # Those of Spark are in tests/spark/test_command_line.py.
    assert {line for line in written - run_here if not line.startswith("fluss spark ")} == set()


class Place:
    """A directory with the files that examples name, a server, and the programs of this environment."""

    def __init__(self, fluss: FlussCommand, opened: ExitStack) -> None:
        self._fluss = fluss
        self._opened = opened
        self._names: dict[str, str] = {}
        # The runner's own is ./data, which examples use for something else.
        fluss.environment["XDG_DATA_HOME"] = str(fluss.home / ".local" / "share")
        self._files()

    def _files(self) -> None:
        home = self._fluss.home
        pq.write_table(pa.table(TRIPS), home / "trips.parquet")
        pacsv.write_csv(pa.table(TRIPS), home / "trips.csv")
        (home / "trips.csv.gz").write_bytes(gzip.compress((home / "trips.csv").read_bytes()))
        pq.write_table(pa.table({"city": ["Bonn", "Kiel"], "inhabitants": [340, 250]}), home / "cities.parquet")
        pq.write_table(pa.table({"id": range(100), "price": [float(n) for n in range(100)]}), home / "big.parquet")
        for day in ("2026-01-30", "2026-01-31"):
            (home / f"{day}.csv").write_text(f"id,price\n{day[-2:]},9.5\n")
        (home / "events.jsonl").write_text('{"id": 1}\n')
        (home / "users.jsonl").write_text('{"id": 17, "name": "Ada"}\n{"id": 18, "name": "Bob"}\n')
        (home / "keys.txt").write_text("17\n18\n")
        (home / "password").write_text("ci-secret\n")
        (home / "password").chmod(0o600)
        (home / "server.yaml").write_text(
            "data.dir: ./configured\nbind.listeners: FLUSS://127.0.0.1:0\ndurability: os\n"
        )
        (home / ".config" / "fish" / "completions").mkdir(parents=True)
        ThrowawayCa(home)

    def serve(self, options: Mapping[str, str] | None = None, *, name: str = "server") -> EmbeddedServer:
        """Start a server; lines know it as ``{name}``, and the command finds the one that is named ``server``."""
        server = self._opened.enter_context(EmbeddedServer({"durability": "os", **(options or {})}))
        self._names[name] = server.bootstrap_servers
        if name == "server":
            self._fluss.environment["FLUSS_BOOTSTRAP_SERVERS"] = server.bootstrap_servers
        return server

    def consume(self) -> None:
        with blocking.connect(self._names["server"]) as connection:
            consumer = connection.get_table("fluss.trips").consumer("billing", auto_commit=False)
            with consumer:
                eventually(lambda: bool(consumer.poll(timeout_ms=100)), "rows for the consumer")
                consumer.commit()

    def leave_data(self) -> None:
        """Leave a data directory with a table `sales.orders` whose id is that of the example."""
        with EmbeddedServer({"durability": "os"}, data_dir=self._fluss.home / "data") as server:
            for table in ("sales.first", "sales.second", "sales.third", "sales.orders"):
                _make_table(server, table)

    def back_up(self) -> None:
        self._serve_with_backup({"remote.data.dir": str(self._fluss.home / "archive")})

    def back_up_in_object_store(self) -> None:
        endpoint = self._opened.enter_context(s3_server())
        self._names["bucket"] = f"s3://{new_bucket(endpoint)}/fluss"
        options = {"s3.endpoint": endpoint, **KEYS}
        lines = [f"{key}: {value}" for key, value in options.items()]
        (self._fluss.home / "server.yaml").write_text("\n".join(["data.dir: ./configured", *lines]))
        self._serve_with_backup({"remote.data.dir": self._names["bucket"], **options})

    def _serve_with_backup(self, options: Mapping[str, str]) -> None:
        with EmbeddedServer({"durability": "os", **options}) as server:
            _make_table(server, "sales.orders")

    def check(self, example: Example) -> None:
        """Run what an example needs, then the example itself, and look at what it has shown."""
        for line in example.before:
            if isinstance(line, str):
                code, shown = self._run(line.format(**self._names))
                assert code == 0, f"{line}\n{shown}"
            else:
                line(self)
        line = example.line
        for words, stand_in in example.instead.items():
            assert words in line
            line = line.replace(words, stand_in.format(**self._names))
        code, shown = self._run(line, example.types)
        assert code == example.code, f"{line}\n{shown}"
        assert re.search(example.shows, shown), f"no {example.shows!r} after {line}\n{shown}"

    def _run(self, line: str, types: Sequence[tuple[str, str]] = ()) -> tuple[int, str]:
        """Run a line, and return its exit code and everything that it has shown."""
        if _needs_shell(line):
            return self._bash(line)
        words = shlex.split(line, comments=True)[1:]
        if not types:
            done = self._fluss.run(*words)
            return done.code, done.out + done.err
        running = self._fluss.start(*words, terminal=True)
        for shown, typed in types:
            running.read_until(shown)
            running.send(typed)
        ended = running.wait()
        return ended.code, ended.out

    def _bash(self, line: str) -> tuple[int, str]:
        programs = self._fluss.home / "bin"
        if not programs.exists():
            programs.mkdir()
            (programs / "fluss").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fluss "$@"\n')
            (programs / "fluss").chmod(0o755)
        environment = self._fluss.process_environment() | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
        }
        # What follows a file does not end on its own; the command has read its one line when that is done.
        ending = line.replace("tail -f ", "timeout 1 tail -f ")
        done = subprocess.run(
            ["bash", "-c", ending], cwd=self._fluss.home, env=environment, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr


def _make_table(server: EmbeddedServer, path: str) -> None:
    with blocking.connect(server.bootstrap_servers) as connection:
        admin = connection.get_admin()
        admin.create_database("sales", ignore_if_exists=True)
        schema = pa.schema([("id", pa.int64()), ("price", pa.float64())])
        admin.create_table(path, TableDescriptor(Schema(schema, primary_keys=["id"]), bucket_count=1))
        writer = connection.get_table(path).new_upsert().create_writer()
        writer.upsert_arrow(pa.table({"id": range(10), "price": [9.5] * 10}))
        writer.flush()


def _needs_shell(line: str) -> bool:
    """Whether a line is more than words for the command: has a pipe, a redirection or something to be expanded."""
    words = shlex.shlex(line, punctuation_chars=True)
    return not line.startswith("fluss ") or any(re.match(r"[|<>~$(]|[^'\"]*\*", word) for word in words)


def test_what_needs_a_shell_is_known() -> None:
    assert _needs_shell("fluss put users < users.jsonl")
    assert _needs_shell("fluss load 2026-*.csv sales.orders")
    assert _needs_shell("fluss log verify ~/data")
    assert not _needs_shell("fluss tail -f trips --filter 'km > 5'")
    assert not _needs_shell("fluss acl grant '*:*' describe --cluster")
    assert not _needs_shell('fluss sql "SELECT * FROM trips"     # all of them')


@pytest.fixture
def place(fluss: FlussCommand) -> Iterator[Place]:
    with ExitStack() as opened:
        yield Place(fluss, opened)


@pytest.mark.parametrize("name", [*SCENARIOS, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)])
def test_examples_do_what_they_say(name: str, place: Place) -> None:
    place.serve(RIGHTS if name == "rights" else {})
    if name == "two clusters":
        place.serve(name="other")
    for example in {**SCENARIOS, **LONG}[name]:
        place.check(example)
