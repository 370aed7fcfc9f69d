"""Metrics: one counter per name and labels, values read when somebody looks, and the text form."""

from __future__ import annotations

import pytest

from fluss.metrics import Metrics, Sample


def test_the_text_form():
    metrics = Metrics()
    metrics.counter("fluss_b_total", "Things.", kind="x").add(2)
    metrics.counter("fluss_b_total", "Things.", kind="x").add()
    size = [1.5]
    metrics.gauge("fluss_a_bytes", "A size.", lambda: size[0])
    size[0] = 2.25
    metrics.gauges("fluss_c", "By user.", lambda: [Sample(7, (("user", 'a"\\\nb'),))])
    assert metrics.text() == (
        "# HELP fluss_a_bytes A size.\n# TYPE fluss_a_bytes gauge\nfluss_a_bytes 2.25\n"
        '# HELP fluss_b_total Things.\n# TYPE fluss_b_total counter\nfluss_b_total{kind="x"} 3\n'
        '# HELP fluss_c By user.\n# TYPE fluss_c gauge\nfluss_c{user="a\\"\\\\\\nb"} 7\n'
    )
    assert metrics.values()[("fluss_b_total", (("kind", "x"),))] == 3


def test_one_name_has_one_kind():
    metrics = Metrics()
    metrics.counter("fluss_a_total", "Things.")
    with pytest.raises(AssertionError, match="another kind"):
        metrics.gauge("fluss_a_total", "Things.", lambda: 0)
