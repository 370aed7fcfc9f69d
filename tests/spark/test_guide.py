"""The guide's pages about Spark tell the truth: their programs run, and print what the comments at a print say.

Each page runs in the session of the other tests, which `fluss.spark.session()` finds, and starts its own server.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pages import PAGES, needs_spark, program_of, promised_lines

GUIDES = [page for page in PAGES if needs_spark(program_of(page))]


def test_there_are_pages() -> None:
    assert GUIDES


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_programs_of_a_page_print_what_their_comments_say(page: Path, spark: SparkSession) -> None:
    program = program_of(page)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(program, page.name, "exec"), {"__name__": "__main__"})
    finally:
        for query in spark.streams.active:
            query.stop()
    promised = promised_lines(program)
    assert promised
    assert printed.getvalue().splitlines() == promised
