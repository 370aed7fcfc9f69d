"""``fluss load`` and ``fluss dump``: files into a table, and a table into a file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from fluss.cli.kernel.commands import Command
from fluss.cli.kernel.exits import CommandError, Exit
from fluss.cli.kernel.parameters import KEY_VALUE, TABLE, mapping_of, names_of
from fluss.cli.kernel.session import Session, pass_session

if TYPE_CHECKING:
    import pyarrow as pa

    from fluss.cli.rows.load_state import LoadPosition
    from fluss.cli.rows.row_fitting import RejectFile, TableFitter
    from fluss.cli.rows.row_reading import FileBatch, FileReader
    from fluss.file_formats import FileFormat
    from fluss.schema.table import PartitionSpec

_FILE_FORMATS = ("parquet", "csv", "json", "arrow")
_file_format_option = click.option(
    "--file-format", type=click.Choice(_FILE_FORMATS), help="What the file consists of, if its name does not say."
)


@click.command(
    cls=Command,
    examples=(
        "fluss load trips.parquet trips",
        "fluss load 2026-*.csv sales.orders --rejects bad.jsonl",
        "fluss load big.parquet sales.orders --resume big.state     # after an interruption: the same once more",
        "zcat trips.csv.gz | fluss load - trips --file-format csv",
    ),
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.argument("table", type=TABLE)
@_file_format_option
@click.option(
    "--rename", type=KEY_VALUE, multiple=True, metavar="NAME=COLUMN", help="A column of the files has another name."
)
@click.option("--ignore-extra", is_flag=True, help="Leave out columns that the table does not have.")
@click.option("--rejects", metavar="FILE", help="Write rows that do not fit to this file, as JSON lines, and go on.")
@click.option("--max-rejects", type=click.IntRange(min=0), help="Give up after so many rows that do not fit.")
@click.option(
    "--resume", "state_file", metavar="FILE", help="Keep account in this file, to go on after an interruption."
)
@click.option("--delimiter", help="What is between values of CSV.  [default: a comma, a tab in .tsv]")
@click.option("--quote", default='"', show_default=True, help="What is around texts of CSV.")
@click.option(
    "--no-header", is_flag=True, help="CSV without a first line of names: the columns of the table, in order."
)
@click.option(
    "--null", "nulls", multiple=True, default=("",), help="A text of CSV that means null, if it is not quoted."
)
@click.option("--multiline", is_flag=True, help="Texts of CSV may have line ends in them.")
@click.option(
    "--part-bytes",
    type=click.IntRange(min=1),
    default=32 * 1024 * 1024,
    show_default=True,
    help="With --resume: about how much is written between two entries in the account.",
)
@click.option("--no-create-partitions", is_flag=True, help="Refuse rows of partitions that are not there.")
@pass_session
def load(
    session: Session,
    files: tuple[str, ...],
    table: str,
    file_format: str | None,
    rename: tuple[tuple[str, str], ...],
    ignore_extra: bool,
    rejects: str | None,
    max_rejects: int | None,
    state_file: str | None,
    delimiter: str | None,
    quote: str,
    no_header: bool,
    nulls: tuple[str, ...],
    multiline: bool,
    part_bytes: int,
    no_create_partitions: bool,
) -> int:
    """Load files into a table: Parquet, CSV, JSON lines, Arrow.

    FILE may be - for standard input. Columns are found by name; those that a file lacks are null. Rows of a primary-key
    table are inserted or replaced. A value that would change in its column does not fit, and neither does a row
    without its key: the load ends there, or writes the row to --rejects.

    With --resume each row is written once, however often the load is interrupted and begun again; without, a second
    load writes everything a second time.
    """
    from fluss.cli.rows.load_state import LoadPosition, account_lock
    from fluss.cli.rows.row_files import STANDARD_INPUT, format_of
    from fluss.cli.rows.row_fitting import RejectFile, TableFitter
    from fluss.cli.rows.row_reading import CsvStyle, FileReader
    from fluss.file_formats import FileFormat

    for file in files:
        if file != STANDARD_INPUT and not os.path.isfile(file):
            raise CommandError(f"there is no file {file}", Exit.NOT_FOUND)
    chosen = None if file_format is None else FileFormat(file_format)
    formats = [(file, chosen or format_of(file, has_option=True)) for file in files]
    _check_apart(files, rejects, state_file)
    if state_file is not None and (STANDARD_INPUT in files or multiline):
        what = "standard input" if STANDARD_INPUT in files else "--multiline"
        raise click.UsageError(f"--resume does not go with {what}, which cannot be read from a position on")
    if not no_create_partitions:
        session.creates_partitions()
    info = session.table(table).get_table_info()
    csv_format = CsvStyle(delimiter, quote, not no_header, nulls, multiline)
    reader = FileReader(info.schema, csv_format, mapping_of(rename, "column"), ignore_extra)
    settings = {
        "rename": sorted(rename),
        "csv": [delimiter, quote, no_header, list(nulls)],
        "format": file_format,
        "ignore_extra": ignore_extra,
        "part_bytes": part_bytes,
    }
    if state_file is not None:
        session.keep(account_lock(state_file))
    state = None if state_file is None else LoadPosition.open(state_file, info, files, settings)
    count, size = (0, 0) if state is None else (state.rejected, state.rejects_size)
    with RejectFile(rejects, max_rejects, count=count, size=size) as reject_file:
        fitter = TableFitter(info, reader, reject_file)
        work = _Load(session, table, formats, reader, fitter, reject_file, creates=not no_create_partitions)
        rows = work.run() if state is None else work.run_with(state, part_bytes)
        rejected = reject_file.count
    facts: dict[str, Any] = {"table": table, "files": len(files), "rows": rows, "rejected": rejected}
    told = f"Loaded {rows:,} rows into {table}"
    session.out.done(f"{told}; {rejected:,} did not fit, see {rejects}." if rejected else f"{told}.", **facts)
    return Exit.DATA if rejected else Exit.OK


def _check_apart(files: Sequence[str], rejects: str | None, state_file: str | None) -> None:
    """Refuse to write over what is read: both files are written from their beginning."""
    read = [os.path.realpath(file) for file in files if file != "-"]
    written = [os.path.realpath(file) for file in (state_file, rejects) if file is not None]
    for number, path in enumerate(written):
        if path in (*read, *written[:number]):
            raise click.UsageError(f"{path} would be written over; give another file to --rejects or --resume")


class _Load:
    """One load, in one go or in parts of which account is kept."""

    def __init__(
        self,
        session: Session,
        table: str,
        files: list[tuple[str, FileFormat]],
        reader: FileReader,
        fitter: TableFitter,
        rejects: RejectFile,
        *,
        creates: bool,
    ) -> None:
        self._creates_partitions = creates
        self._session = session
        self._table = table
        self._files = files
        self._reader = reader
        self._fitter = fitter
        self._rejects = rejects

    def run(self) -> int:
        """Write everything, and return how many rows there were."""
        from fluss.blocking import UpsertWriter
        from fluss.cli.kernel.progress import WorkProgress

        table = self._session.table(self._table)
        rows = 0
        with WorkProgress(f"load {self._table}", self._total_bytes()) as progress:
            has_key = table.has_primary_key()
            writer = table.new_upsert().create_writer() if has_key else table.new_append().create_writer()
            write = writer.upsert_arrow_batch if isinstance(writer, UpsertWriter) else writer.write_arrow_batch
            before = 0
            for file, file_format in self._files:
                size = _size(file)
                position_total = _positions(file, file_format)
                for placed in self._reader.read(file, file_format, self._rejects):
                    for batch in self._fitter.fit(placed):
                        write(batch)
                        rows += batch.num_rows
                    if placed.position is not None and position_total:
                        progress.update(rows, before + size * min(placed.position, position_total) // position_total)
                    else:
                        progress.update(rows, before)
                before += size
            self._session.finish(writer)
        return rows

    def _total_bytes(self) -> int | None:
        sizes = [_size(file) for file, _ in self._files]
        return sum(sizes) if all(sizes) else None

    def run_with(self, state: LoadPosition, part_bytes: int) -> int:
        """Write what earlier runs have not, and return how many rows all of them have written."""
        from fluss.cli.kernel.progress import WorkProgress
        from fluss.cli.rows.exact_writing import write_part

        table = self._session.plain_table(self._table)
        admin = self._session.admin

        def create(spec: PartitionSpec) -> None:
            admin.create_partition(self._table, spec, ignore_if_exists=True)

        with WorkProgress(f"load {self._table}", self._total_bytes()) as progress:
            while not state.is_done:
                file, file_format = self._files[state.file]
                placed = self._reader.read(file, file_format, self._rejects, state.position)
                part = _Part(placed, self._fitter, part_bytes)
                counted = write_part(table, part.batches(), state, create if self._creates_partitions else None)
                is_end = part.position is None
                state.part_ended(
                    counted,
                    self._rejects.count,
                    self._rejects.sync(),
                    file=state.file + 1 if is_end else state.file,
                    position=0 if part.position is None else part.position,
                    file_count=len(self._files),
                )
                done = sum(_size(each) for each, _ in self._files[: state.file])
                if part.position is not None:
                    done += _size(file) * part.position // max(_positions(file, file_format), 1)
                progress.update(state.rows, done)
        return state.rows


class _Part:
    """The rows of a file from a position up to one about so many bytes later. ``position`` is None at its end."""

    def __init__(self, placed_batches: Iterator[FileBatch], fitter: TableFitter, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._placed = placed_batches
        self._fitter = fitter
        self.position: int | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        byte_count = 0
        for placed in self._placed:
            byte_count += placed.rows.nbytes
            yield from self._fitter.fit(placed)
            if placed.position is not None and byte_count >= self._bytes_max:
                self.position = placed.position
                return


def _size(file: str) -> int:
    try:
        return os.path.getsize(file)
    except OSError:
        return 0


def _positions(file: str, file_format: FileFormat) -> int:
    """Return the position at the end of a file; 0 if it is not known."""
    from fluss.file_formats import FileFormat, is_compressed

    if file_format is FileFormat.PARQUET:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return int(pq.read_metadata(file).num_row_groups)
        except (pa.ArrowException, OSError):
            # Reading it says what is wrong.
            return 0
    if file_format is FileFormat.ARROW or is_compressed(file):
        return 0
    return _size(file)


# The other way


def _row_count(session: Session, table: str) -> int | None:
    """Return how many rows there will be, for those who watch; not every server can count, nor at every moment."""
    from fluss.errors import FlussError

    try:
        return int(session.admin.get_table_stats(table).row_count)
    except FlussError:
        return None


@click.command(
    cls=Command,
    examples=(
        "fluss dump trips trips.parquet",
        "fluss dump sales.orders - --file-format csv --columns id,price --filter 'price > 10' | head",
    ),
)
@click.argument("table", type=TABLE)
@click.argument("file")
@_file_format_option
@click.option("--columns", multiple=True, metavar="NAMES", help="Only these columns.")
@click.option("--filter", "condition", metavar="SQL", help="Only rows for which this holds, such as 'km > 5'.")
@click.option("--partition", "partitions", multiple=True, metavar="NAME", help="Only this partition; repeatable.")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many rows.")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@pass_session
def dump(
    session: Session,
    table: str,
    file: str,
    file_format: str | None,
    columns: tuple[str, ...],
    condition: str | None,
    partitions: tuple[str, ...],
    limit: int | None,
    force: bool,
) -> None:
    """Write the rows of a table to a file: Parquet, CSV, JSON lines, Arrow.

    Of a primary-key table these are its rows of now, of a log table all that it holds. FILE may be - for standard
    output. Memory is bounded, however large the table is, and a file is there when it is complete.
    """
    from fluss.cli.kernel.progress import WorkProgress
    from fluss.cli.rows.row_files import STANDARD_INPUT, format_of
    from fluss.cli.rows.row_writing import row_writer
    from fluss.file_formats import FileFormat

    wanted = FileFormat(file_format) if file_format is not None else format_of(file, has_option=True)
    if file != STANDARD_INPUT and os.path.exists(file) and not force:
        raise CommandError(f"{file} is there already; --force writes over it")
    found = session.table(table)
    total = None
    if condition is None and not partitions and limit is None:
        total = _row_count(session, table)
    rows = 0
    reader = found.to_arrow_batch_reader(
        names_of(columns) or None, filter=condition, partitions=list(partitions) or None, limit=limit
    )
    types = {column.name: column.data_type for column in found.get_table_info().schema.columns}
    with (
        reader,
        WorkProgress(f"dump {table}", total) as progress,
        row_writer(file, wanted, reader.schema, types) as write,
    ):
        for batch in reader:
            write(batch)
            rows += batch.num_rows
            progress.update(rows, rows)
    if file != STANDARD_INPUT:
        session.out.done(f"Wrote {rows:,} rows of {table} to {file}.", table=table, file=file, rows=rows)
