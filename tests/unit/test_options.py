"""Options read the texts that people write, and refuse texts that are no values.
Shown by one case per rule of the syntax, and by bounds, defaults and secrets."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum

import pytest

from fluss.errors import ErrorCode, FlussError
from fluss.options import (
    BOOLEAN,
    DURATION_MS,
    INT32,
    INT64,
    MEMORY_BYTES,
    RATIO,
    TEXT,
    TIME_ZONE,
    Option,
    choice_of,
    is_secret_key,
    suggestion,
    without_passwords,
)

HOUR_MS = 3_600_000


class Color(StrEnum):
    RED = "RED"
    LIGHT_BLUE = "light_blue"


COLOR = choice_of(Color)


@pytest.mark.parametrize(
    ("value_type", "text", "value"),
    [
        (BOOLEAN, "true", True),
        (BOOLEAN, "FALSE", False),
        (INT32, "0", 0),
        (INT32, "-2147483648", -(2**31)),
        (INT32, "+7", 7),
        (INT64, "9223372036854775807", 2**63 - 1),
        (DURATION_MS, "7 d", 168 * HOUR_MS),
        (DURATION_MS, "0ms", 0),
        (DURATION_MS, " 3  Hours ", 3 * HOUR_MS),
        (DURATION_MS, "2min", 120_000),
        (DURATION_MS, "1 m", 60_000),
        (DURATION_MS, "5 s", 5_000),
        (DURATION_MS, "5 secs", 5_000),
        (DURATION_MS, "1999 micros", 1),
        (DURATION_MS, "1500 µs", 1),
        (DURATION_MS, "1500 μs", 1),
        (DURATION_MS, "2000000 nanoseconds", 2),
        (MEMORY_BYTES, "1b", 1),
        (MEMORY_BYTES, "3 kb", 3072),
        (MEMORY_BYTES, "64 MB", 64 * 1024**2),
        (MEMORY_BYTES, "1g", 1024**3),
        (MEMORY_BYTES, "2 tebibytes", 2 * 1024**4),
        (RATIO, "0.85", 0.85),
        (RATIO, "1", 1.0),
        (COLOR, "red", Color.RED),
        (COLOR, "Light_Blue", Color.LIGHT_BLUE),
    ],
)
def test_a_value_is_read(value_type, text, value):
    assert Option("key", value_type, text, "Doc.").parse(text) == value


@pytest.mark.parametrize(
    ("value_type", "text"),
    [
        (BOOLEAN, "yes"),
        (BOOLEAN, ""),
        (INT32, "1.0"),
        (INT32, "2147483648"),
        (INT32, " 1"),
        (INT32, "٣"),
        (INT32, "9" * 10_000),
        (INT64, "-9223372036854775809"),
        (DURATION_MS, "7"),
        (DURATION_MS, "d"),
        (DURATION_MS, "-1 s"),
        (DURATION_MS, "1.5 h"),
        (DURATION_MS, "1 fortnight"),
        (DURATION_MS, "9" * 30 + " d"),
        (MEMORY_BYTES, "64"),
        (MEMORY_BYTES, "64 mib"),
        (MEMORY_BYTES, "9" * 30 + " t"),
        (RATIO, "1.1"),
        (RATIO, "nan"),
        (RATIO, "half"),
        (COLOR, "blue"),
        (TIME_ZONE, "Mars/Phobos"),
        (TIME_ZONE, ""),
        (TIME_ZONE, "../etc/passwd"),
        (TIME_ZONE, "Europe"),
        (TIME_ZONE, "+25:00"),
    ],
)
def test_a_text_that_is_no_value_is_refused_with_what_was_expected(value_type, text):
    with pytest.raises(FlussError) as failure:
        Option("some.key", value_type, "", "Doc.", error_code=ErrorCode.INVALID_CONFIG_EXCEPTION).parse(text)
    assert failure.value.error_code == 39
    assert "'some.key'" in failure.value.message
    assert value_type.expected in failure.value.message
    assert len(failure.value.message) < 500


@pytest.mark.parametrize(
    ("text", "hour"),
    [("UTC", 12), ("Z", 12), ("Asia/Shanghai", 20), ("+08:00", 20), ("UTC+8", 20), ("GMT-0330", 8)],
)
def test_time_zones_are_names_or_offsets(text, hour):
    assert datetime(2024, 1, 1, 12, tzinfo=UTC).astimezone(TIME_ZONE.read(text)).hour == hour


def test_a_default_is_a_value_or_the_text_for_one():
    as_text = Option("ttl", DURATION_MS, "1 h", "Doc.")
    as_value = Option("ttl", DURATION_MS, HOUR_MS, "Doc.")
    assert (as_text.default, as_text.default_text) == (HOUR_MS, "1 h")
    assert (as_value.default, as_value.default_text) == (HOUR_MS, str(HOUR_MS))
    assert (Option("on", BOOLEAN, True, "Doc.").default_text, Option("color", COLOR, "", "Doc.").default_text) == (
        "true",
        "",
    )


def test_numbers_have_bounds():
    option = Option("count", INT32, 1, "Doc.", lowest=1, highest=5)
    assert option.parse("5") == 5
    with pytest.raises(FlussError, match="Invalid value '0' for 'count': it must be at least 1"):
        option.parse("0")
    with pytest.raises(FlussError, match="Invalid value '6' for 'count': it must be at most 5"):
        option.parse("6")


def test_secrets_are_not_shown():
    option = Option("pin", INT32, 0, "Doc.", secret=True)
    with pytest.raises(FlussError, match=r"Invalid value '\*\*\*' for 'pin'"):
        option.parse("geheim")


def test_unknown_keys_are_compared_with_known_ones():
    assert suggestion("log.til", ["log.ttl", "other"]) == "; did you mean 'log.ttl'?"
    assert suggestion("zzz", ["log.ttl"]) == suggestion("log.ttl" * 100, ["log.ttl"]) == ""
    assert Option("text", TEXT, "", "Doc.").parse("as it is") == "as it is"


@pytest.mark.parametrize(
    ("key", "is_secret"),
    [
        ("security.sasl.plain.credentials", True),
        ("security.ssl.listener.name.client.key.password", True),
        ("security.ssl.listener.name.client.key.file", False),
        ("fs.azure.account.key.example", True),
        ("s3.accessKeyId", True),
        ("datalake.iceberg.token", True),
        ("datalake.iceberg.adls.connection-string", True),
        ("datalake.iceberg.rest.basic-auth", True),
        ("datalake.iceberg.header.Cookie", True),
        ("datalake.paimon.jdbc.pwd", True),
        ("security.sasl.enabled.mechanisms", False),
        ("log.segment.file-size", False),
    ],
)
def test_keys_that_sound_like_secrets_are_taken_for_some(key: str, is_secret: bool) -> None:
    assert is_secret_key(key) is is_secret


def test_passwords_in_addresses_are_hidden() -> None:
    assert without_passwords("jdbc:x://u:p-w@h:1/d?a=b, ftp://u@h") == "jdbc:x://u:***@h:1/d?a=b, ftp://u@h"
    assert without_passwords("https://u:p@w@h/d") == "https://u:***@h/d"
    assert without_passwords("jdbc:x://h/d?user=u&password=p-w&a=b") == "jdbc:x://h/d?user=u&password=***&a=b"
    assert without_passwords("https://h/f?sv=1&sig=p%2Fw") == "https://h/f?sv=1&sig=***"
    assert without_passwords("Protocol=https;AccountKey=p-w==;Suffix=x") == "Protocol=https;AccountKey=***;Suffix=x"
    assert without_passwords("FLUSS://127.0.0.1:0,CLIENT://0.0.0.0:1") == "FLUSS://127.0.0.1:0,CLIENT://0.0.0.0:1"
