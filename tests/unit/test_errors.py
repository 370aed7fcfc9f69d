"""Errors carry a message for people and a code for programs, and codes become types.
Shown with the documented texts and the full table of codes."""

import pickle

import pytest

from fluss import ErrorCode, FlussError
from fluss.errors import (
    AuthenticationError,
    ChecksumError,
    CorruptMessageError,
    CorruptRecordError,
    FrameTooLargeError,
    HttpReceivedError,
    NegativeFrameLengthError,
    NetworkError,
    RequestTimeoutError,
    SizeLimitError,
    UnsupportedVersionError,
    error_for_code,
)

RETRIABLE = {1, 3, 9, 10, 11, 12, 14, 21, 25, 26, 28, 29, 44, 72}


def test_an_error_found_on_this_side_has_code_minus_two() -> None:
    error = FlussError("it broke")
    assert (error.message, error.error_code, error.is_retriable) == ("it broke", -2, False)
    assert str(error) == "FlussError: it broke"
    assert error.args == ("it broke",)
    assert isinstance(error, Exception)
    assert FlussError("it broke", -2).args == ("it broke", -2)


def test_a_servers_error_shows_its_code() -> None:
    error = FlussError("no such table", 7)
    assert (error.message, error.error_code) == ("no such table", ErrorCode.TABLE_NOT_EXIST)
    assert str(error) == "FlussError(code=7): no such table"
    assert repr(error) == "FlussError('no such table', 7)"
    assert FlussError(message="m", error_code=ErrorCode.TABLE_NOT_EXIST).error_code == 7
    with pytest.raises(AttributeError):
        error.error_code = 8  # type: ignore[misc]
    with pytest.raises(TypeError, match="message must be str"):
        FlussError(5)  # type: ignore[arg-type]
    for code in ("7", 7.0):
        with pytest.raises(TypeError, match="integer"):
            FlussError("text", code)  # type: ignore[arg-type]  # the mistake is the point


def test_codes_have_the_numbers_of_the_protocol() -> None:
    assert sorted(ErrorCode) == list(range(-2, 74))
    assert ErrorCode.CLIENT_ERROR == -2
    assert ErrorCode.SERVER_TAG_NOT_EXIST_EXCEPTION is ErrorCode.SEVER_TAG_NOT_EXIST_EXCEPTION
    assert ErrorCode.UNKNOWN_SERVER_ERROR == -1
    assert ErrorCode.DATABASE_NOT_EXIST == 4
    assert ErrorCode.PARTITION_NOT_EXISTS == 36
    assert ErrorCode.AUTHENTICATE_EXCEPTION == 46
    assert ErrorCode.DELETION_DISABLED_EXCEPTION == 57
    assert ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION == 72


@pytest.mark.parametrize("code", [code for code in ErrorCode if code <= 57 or code == 72])
def test_retriable_codes_are_the_documented_ones(code: ErrorCode) -> None:
    assert FlussError("m", code).is_retriable is (code in RETRIABLE)


def test_stale_metadata_is_named() -> None:
    assert {code for code in ErrorCode if FlussError("m", code).stale_metadata} == {1, 12, 21, 44}


@pytest.mark.parametrize(
    ("cls", "code"),
    [
        (CorruptRecordError, 14),
        (ChecksumError, 14),
        (SizeLimitError, 14),
        (CorruptMessageError, 3),
        (NegativeFrameLengthError, 3),
        (FrameTooLargeError, 3),
        (HttpReceivedError, 3),
        (UnsupportedVersionError, 2),
        (NetworkError, 1),
        (RequestTimeoutError, 25),
        (AuthenticationError, 46),
    ],
)
def test_typed_errors_have_their_code_and_are_pickled(cls: type[FlussError], code: int) -> None:
    error = cls("m")
    assert error.error_code == code
    twin = pickle.loads(pickle.dumps(error))
    assert type(twin) is cls
    assert (twin.message, twin.error_code) == ("m", code)
    assert str(twin) == f"FlussError(code={code}): m"


def test_codes_become_types_and_unknown_codes_are_kept() -> None:
    assert type(error_for_code(46, "denied")) is AuthenticationError
    assert type(error_for_code(7, "gone")) is FlussError
    assert error_for_code(7, None).message == "table not exist"
    assert error_for_code(7, "").message == "table not exist"
    unknown = error_for_code(4711, None)
    assert unknown.error_code == 4711
    assert "4711" in unknown.message
    assert not unknown.is_retriable


def test_a_copy_is_equal_and_has_no_history() -> None:
    try:
        raise ChecksumError("damaged", 14) from ValueError("the reason")
    except ChecksumError as caught:
        error = caught
    copy = error.copied()
    assert (type(copy), copy.message, copy.error_code) == (ChecksumError, "damaged", 14)
    assert copy is not error
    assert copy.__traceback__ is None
    assert copy.__cause__ is error.__cause__


TRACE = """org.apache.fluss.exception.FlussRuntimeException: Failed to get tables '[fluss.users]'.
\tat org.apache.fluss.server.Somewhere.tables(Somewhere.java:624)
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: {cause}
\t... 16 more
"""


@pytest.mark.parametrize(
    ("cause", "code", "message"),
    [
        (
            "org.apache.fluss.exception.TableNotExistException: Table 'fluss.users' does not exist.",
            7,
            "Table 'fluss.users' does not exist.",
        ),
        ("org.apache.fluss.exception.PartitionNotExistException: no partition 'a'", 36, "no partition 'a'"),
        ("org.apache.fluss.exception.LeaderNotAvailableException", 44, "LeaderNotAvailableException"),
        (
            "java.io.IOException: disk",
            -1,
            "FlussRuntimeException: Failed to get tables '[fluss.users]'. <- IOException: disk",
        ),
    ],
)
def test_a_stack_trace_of_a_java_server_becomes_its_sentence_and_its_code(cause: str, code: int, message: str) -> None:
    error = error_for_code(-1, TRACE.format(cause=cause))
    assert (error.error_code, error.message) == (code, message)


def test_a_stack_trace_of_one_line_is_one_as_well() -> None:
    error = error_for_code(-1, "org.apache.fluss.exception.SchemaChangeException: Not support drop column now.\n")
    assert (error.error_code, error.message) == (-1, "SchemaChangeException: Not support drop column now.")


def test_an_answer_that_only_looks_like_a_stack_trace_stays_as_it_is() -> None:
    for text in ("at noon: it broke", "java.io.IOException: disk", "line\nat lunch (today)"):
        assert error_for_code(-1, text).message == text
    assert error_for_code(9, TRACE).message == TRACE, "only answers without a code have it in the trace"
