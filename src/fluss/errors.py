"""What can go wrong, as types and codes.

    Exception
    └── FlussError                    everything the library raises on purpose; code -2 unless the cause has its own
        ├── CorruptRecordError   14   rows, keys or batches that do not follow their format
        │   ├── ChecksumError    14   the bytes are whole but not the ones that were written
        │   └── SizeLimitError   14   following the format would need more memory than allowed
        ├── KvDamagedError       11   a key-value store on the disk is not what was written
        ├── CorruptMessageError   3   frames or protobuf messages that do not follow the protocol
        │   ├── NegativeFrameLengthError  3
        │   └── FrameTooLargeError        3
        │       └── HttpReceivedError     3
        ├── UnsupportedVersionError   2   the peer does not serve this API, or not in a common version
        ├── NetworkError          1   the connection failed; the request may or may not have been carried out
        ├── RequestTimeoutError  25   no answer in time; the request may or may not have been carried out
        ├── ConsumerFencedError  -2   a consumer has lost its buckets to others of its group
        └── AuthenticationError  46   wrong or missing credentials

A server's error code always reaches the caller as ``FlussError.error_code``, known to this version or not.
"""

from __future__ import annotations

import re
from copy import copy
from enum import IntEnum
from operator import index
from pathlib import Path
from typing import ClassVar, Self


class ErrorCode(IntEnum):
    """Codes on the wire, plus ``CLIENT_ERROR`` (-2) for what was detected without asking a server."""

    CLIENT_ERROR = -2
    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    NETWORK_EXCEPTION = 1
    UNSUPPORTED_VERSION = 2
    CORRUPT_MESSAGE = 3
    DATABASE_NOT_EXIST = 4
    DATABASE_NOT_EMPTY = 5
    DATABASE_ALREADY_EXIST = 6
    TABLE_NOT_EXIST = 7
    TABLE_ALREADY_EXIST = 8
    SCHEMA_NOT_EXIST = 9
    LOG_STORAGE_EXCEPTION = 10
    KV_STORAGE_EXCEPTION = 11
    NOT_LEADER_OR_FOLLOWER = 12
    RECORD_TOO_LARGE_EXCEPTION = 13
    CORRUPT_RECORD_EXCEPTION = 14
    INVALID_TABLE_EXCEPTION = 15
    INVALID_DATABASE_EXCEPTION = 16
    INVALID_REPLICATION_FACTOR = 17
    INVALID_REQUIRED_ACKS = 18
    LOG_OFFSET_OUT_OF_RANGE_EXCEPTION = 19
    NON_PRIMARY_KEY_TABLE_EXCEPTION = 20
    UNKNOWN_TABLE_OR_BUCKET_EXCEPTION = 21
    INVALID_UPDATE_VERSION_EXCEPTION = 22
    INVALID_COORDINATOR_EXCEPTION = 23
    FENCED_LEADER_EPOCH_EXCEPTION = 24
    REQUEST_TIME_OUT = 25
    STORAGE_EXCEPTION = 26
    OPERATION_NOT_ATTEMPTED_EXCEPTION = 27
    NOT_ENOUGH_REPLICAS_AFTER_APPEND_EXCEPTION = 28
    NOT_ENOUGH_REPLICAS_EXCEPTION = 29
    SECURITY_TOKEN_EXCEPTION = 30
    OUT_OF_ORDER_SEQUENCE_EXCEPTION = 31
    DUPLICATE_SEQUENCE_EXCEPTION = 32
    UNKNOWN_WRITER_ID_EXCEPTION = 33
    INVALID_COLUMN_PROJECTION = 34
    INVALID_TARGET_COLUMN = 35
    PARTITION_NOT_EXISTS = 36
    TABLE_NOT_PARTITIONED_EXCEPTION = 37
    INVALID_TIMESTAMP_EXCEPTION = 38
    INVALID_CONFIG_EXCEPTION = 39
    LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION = 40
    KV_SNAPSHOT_NOT_EXIST = 41
    PARTITION_ALREADY_EXISTS = 42
    PARTITION_SPEC_INVALID_EXCEPTION = 43
    LEADER_NOT_AVAILABLE_EXCEPTION = 44
    PARTITION_MAX_NUM_EXCEPTION = 45
    AUTHENTICATE_EXCEPTION = 46
    SECURITY_DISABLED_EXCEPTION = 47
    AUTHORIZATION_EXCEPTION = 48
    BUCKET_MAX_NUM_EXCEPTION = 49
    FENCED_TIERING_EPOCH_EXCEPTION = 50
    RETRIABLE_AUTHENTICATE_EXCEPTION = 51
    INVALID_SERVER_RACK_INFO_EXCEPTION = 52
    LAKE_SNAPSHOT_NOT_EXIST = 53
    LAKE_TABLE_ALREADY_EXIST = 54
    INELIGIBLE_REPLICA_EXCEPTION = 55
    INVALID_ALTER_TABLE_EXCEPTION = 56
    DELETION_DISABLED_EXCEPTION = 57
    SERVER_NOT_EXIST_EXCEPTION = 58
    SEVER_TAG_ALREADY_EXIST_EXCEPTION = 59  # The protocol spells it like this, clients like the next.
    SERVER_TAG_ALREADY_EXIST_EXCEPTION = 59
    SEVER_TAG_NOT_EXIST_EXCEPTION = 60
    SERVER_TAG_NOT_EXIST_EXCEPTION = 60
    REBALANCE_FAILURE_EXCEPTION = 61
    NO_REBALANCE_IN_PROGRESS_EXCEPTION = 62
    INVALID_PRODUCER_ID_EXCEPTION = 63
    CONFIG_EXCEPTION = 64
    NOT_COORDINATOR_LEADER_EXCEPTION = 65
    SCANNER_EXPIRED = 66
    UNKNOWN_SCANNER_ID = 67
    INVALID_SCAN_REQUEST = 68
    TOO_MANY_SCANNERS = 69
    DISK_WRITE_LOCKED = 70
    INSUFFICIENT_KV_LEADER_REPLICA_CAPACITY = 71
    STORAGE_BACKPRESSURE_EXCEPTION = 72
    HISTORICAL_PARTITION_THROTTLED = 73


# Sending the same request again later can succeed.
RETRIABLE_CODES: frozenset[int] = frozenset(
    int(code)
    for code in (
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.SCHEMA_NOT_EXIST,
        ErrorCode.LOG_STORAGE_EXCEPTION,
        ErrorCode.KV_STORAGE_EXCEPTION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.CORRUPT_RECORD_EXCEPTION,
        ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
        ErrorCode.REQUEST_TIME_OUT,
        ErrorCode.STORAGE_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS_EXCEPTION,
        ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
        ErrorCode.DISK_WRITE_LOCKED,
        ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION,
        ErrorCode.HISTORICAL_PARTITION_THROTTLED,
    )
)

# The client's picture of the cluster is old: read the metadata again before the next try.
STALE_METADATA_CODES: frozenset[int] = frozenset(
    int(code)
    for code in (
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
        ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
    )
)


# Directories that are left out of what others are told, with a slash at the end; the longest first.
_hidden_directories: list[str] = []
# The directories of an absolute path; not of an address, nor of a path that begins with a name.
_DIRECTORIES = re.compile(r"(?<![\w/.:~-])/(?:[^\s/'\"(),;:]+/)+")


def hide_directory(path: Path) -> None:
    """Leave a directory out of the names of files that others are told, until it is unhidden as often."""
    _hidden_directories.append(f"{path}/")
    _hidden_directories.sort(key=len, reverse=True)


def unhide_directory(path: Path) -> None:
    """Undo one ``hide_directory``."""
    _hidden_directories.remove(f"{path}/")


class FlussError(Exception):
    """A failure with a message for people and a code for programs.

    ``error_code`` is the server's code, or -2 when the error was found on this side.
    """

    default_code: ClassVar[int] = ErrorCode.CLIENT_ERROR

    def __init__(self, message: str, error_code: int | None = None) -> None:
        if not isinstance(message, str):
            raise TypeError(f"message must be str, got {type(message).__name__}")
        code = index(self.default_code if error_code is None else error_code)
        # A plain FlussError("text") keeps the arguments it was given; errors with a code carry both.
        if error_code is None and code == ErrorCode.CLIENT_ERROR:
            super().__init__(message)
        else:
            super().__init__(message, code)
        self._message = message
        self._error_code = code

    @property
    def message(self) -> str:
        """What happened, and what can be done about it."""
        return self._message

    @property
    def public_message(self) -> str:
        """The message as it may be told to others: files are named without the directories of this machine."""
        message = self._message
        if "/" in message:
            for directory in _hidden_directories:
                message = message.replace(directory, "")
            message = _DIRECTORIES.sub("", message)
        return message

    @property
    def error_code(self) -> int:
        """The number of the kind of error, see ``ErrorCode``; codes it does not know are kept."""
        return self._error_code

    @property
    def is_retriable(self) -> bool:
        """Whether the same request may succeed later without any change by the caller."""
        return self._error_code in RETRIABLE_CODES

    @property
    def stale_metadata(self) -> bool:
        """Whether cluster metadata should be read again before a retry."""
        return self._error_code in STALE_METADATA_CODES

    def copied(self) -> Self:
        """Return an equal error of the same class and cause, without a traceback.

        One exception object must not be raised in several tasks or threads: each of them would add to its traceback.
        """
        twin = copy(self)
        twin.__cause__, twin.__suppress_context__ = self.__cause__, self.__suppress_context__
        return twin

    def __str__(self) -> str:
        if self._error_code == ErrorCode.CLIENT_ERROR:
            return f"FlussError: {self._message}"
        return f"FlussError(code={self._error_code}): {self._message}"


class CorruptRecordError(FlussError):
    """Rows, keys or batches that do not follow their format."""

    default_code = ErrorCode.CORRUPT_RECORD_EXCEPTION


class ChecksumError(CorruptRecordError):
    """The stored checksum does not match the bytes."""


class SizeLimitError(CorruptRecordError):
    """Decoding would need more memory than the caller allowed."""


class KvDamagedError(FlussError):
    """A key-value store on the disk is not what was written: it is built again from its changelog or a checkpoint."""

    default_code = ErrorCode.KV_STORAGE_EXCEPTION


class CorruptMessageError(FlussError):
    """Frames or messages that do not follow the protocol."""

    default_code = ErrorCode.CORRUPT_MESSAGE


class NegativeFrameLengthError(CorruptMessageError):
    """A frame announced a length below the size of its own header."""


class FrameTooLargeError(CorruptMessageError):
    """A frame announced more bytes than this side accepts; nothing was allocated for it."""


class HttpReceivedError(FrameTooLargeError):
    """The other side speaks HTTP: its first bytes, read as a length, are a method or a version."""


class UnsupportedVersionError(FlussError):
    """The peer does not serve this API, or not in a version this side speaks."""

    default_code = ErrorCode.UNSUPPORTED_VERSION


class NetworkError(FlussError):
    """The connection failed; the request may or may not have been carried out."""

    default_code = ErrorCode.NETWORK_EXCEPTION


class RequestTimeoutError(FlussError):
    """No answer in time; the request may or may not have been carried out."""

    default_code = ErrorCode.REQUEST_TIME_OUT


class ConsumerFencedError(FlussError):
    """A consumer is no longer a member of its group: others may read its buckets now, and its commits do not count.

    What it has processed since its last commit is processed again. The next poll makes it a member again.
    """


class AuthenticationError(FlussError):
    """Wrong or missing credentials."""

    default_code = ErrorCode.AUTHENTICATE_EXCEPTION


_CLASS_BY_CODE: dict[int, type[FlussError]] = {
    int(cls.default_code): cls
    for cls in (
        CorruptRecordError,
        CorruptMessageError,
        UnsupportedVersionError,
        NetworkError,
        RequestTimeoutError,
        AuthenticationError,
    )
}


# Answers of Apache Fluss servers that they did not expect to give: a stack trace, or its first line, with code -1.
_TRACE_LINE = re.compile(r"^\s+at [\w.$/<>]+\(.*\)$", re.MULTILINE)
_THROWN = re.compile(r"^(?:Caused by: )?(?P<package>[\w.$]+\.)(?P<name>\w+)(?:: (?P<text>.*))?$", re.MULTILINE)
_FLUSS_EXCEPTIONS = "org.apache.fluss.exception."
# Exceptions that are not called as their code is.
_CODE_BY_EXCEPTION: dict[str, ErrorCode] = {
    "PartitionNotExistException": ErrorCode.PARTITION_NOT_EXISTS,
    "PartitionAlreadyExistsException": ErrorCode.PARTITION_ALREADY_EXISTS,
    "TimeoutException": ErrorCode.REQUEST_TIME_OUT,
    "TooManyBucketsException": ErrorCode.BUCKET_MAX_NUM_EXCEPTION,
    "TooManyPartitionsException": ErrorCode.PARTITION_MAX_NUM_EXCEPTION,
}


def _is_trace(message: str) -> bool:
    return message.startswith(_FLUSS_EXCEPTIONS) or _TRACE_LINE.search(message) is not None


def _told_by_trace(trace: str) -> tuple[int, str]:
    """Return the code and the sentence that are hidden in a Java stack trace: of the cause that has a code, or all."""
    thrown = list(_THROWN.finditer(trace))
    for cause in reversed(thrown):
        code = _code_of_exception(cause["name"]) if cause["package"] == _FLUSS_EXCEPTIONS else None
        if code is not None:
            return code, cause["text"] or cause["name"]
    told = dict.fromkeys(f"{cause['name']}: {cause['text']}" if cause["text"] else cause["name"] for cause in thrown)
    return ErrorCode.UNKNOWN_SERVER_ERROR, " <- ".join(told) or trace.strip().partition("\n")[0]


def _code_of_exception(name: str) -> ErrorCode | None:
    if name in _CODE_BY_EXCEPTION:
        return _CODE_BY_EXCEPTION[name]
    words = re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()
    return next((code for code in ErrorCode if code.name in (words, words.removesuffix("_EXCEPTION"))), None)


def error_for_code(code: int, message: str | None) -> FlussError:
    """Build the exception for an error answer; a missing text is replaced by the name of the code.

    Where an Apache Fluss server answers with a stack trace instead of a code, the trace says what the code is.
    """
    if code == ErrorCode.UNKNOWN_SERVER_ERROR and message and _is_trace(message):
        code, message = _told_by_trace(message)
    if not message:
        try:
            message = ErrorCode(code).name.replace("_", " ").lower()
        except ValueError:
            message = f"the server answered with error code {code}, which this version does not know"
    return _CLASS_BY_CODE.get(code, FlussError)(message, code)
