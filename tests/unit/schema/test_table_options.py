"""The properties of tables have types and defaults, and unknown keys and bad values are refused.
Shown by the table of properties, checked against itself."""

from __future__ import annotations

import pytest

from fluss.errors import FlussError
from fluss.schema.table_options import (
    LOG_FORMAT,
    LOG_TTL,
    TABLE_OPTIONS,
    TABLE_PREFIX,
    Alterable,
    check_properties,
    unknown_option_text,
)

HOUR_MS = 3_600_000


def test_every_property_has_the_prefix_a_meaning_and_a_default_of_its_type():
    for key, option in TABLE_OPTIONS.items():
        assert key == option.key
        assert key.startswith(TABLE_PREFIX)
        assert option.doc.endswith(".")
        assert option.of({}) == option.default
        assert isinstance(option.alterable, Alterable)


def test_a_property_is_read_or_has_its_default():
    assert LOG_TTL.of({}) == 168 * HOUR_MS
    assert LOG_TTL.of({"table.log.ttl": "0ms"}) == 0
    assert LOG_FORMAT.of({"table.log.format": "indexed"}) == "INDEXED"


def test_keys_are_looked_at_before_values():
    with pytest.raises(FlussError, match=r"not a known table property; did you mean 'table\.log\.ttl'"):
        check_properties({"table.log.format": "bad", "table.log.tll": "1 d"})


def test_a_foreign_key_is_sent_to_the_custom_properties():
    assert "custom properties" in unknown_option_text("connector")
