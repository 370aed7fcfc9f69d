"""What the guide and the README say about Spark is true: their programs run, and print what comments at a print say.

Each program runs in the session of the other tests, which `fluss.spark.session()` finds, and starts its own server.
"""

from __future__ import annotations

import contextlib
import io

import pytest
from pyspark.sql import SparkSession

from tests.pages import PAGES, needs_spark, program_of, promised_lines, readme_programs

# The first page is among the default tests, the others take longer.
PROGRAMS = [
    *(
        pytest.param(program_of(page), id=page.stem, marks=() if page.stem == "spark" else pytest.mark.slow)
        for page in PAGES
        if needs_spark(program_of(page))
    ),
    *(pytest.param(program, id="README") for program in readme_programs() if needs_spark(program)),
]


def test_there_are_programs() -> None:
    assert len(PROGRAMS) > 1


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_prints_what_its_comments_say(program: str, spark: SparkSession) -> None:
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(program, "program", "exec"), {"__name__": "__main__"})
    finally:
        for query in spark.streams.active:
            query.stop()
    promised = promised_lines(program)
    assert promised
    assert printed.getvalue().splitlines() == promised
