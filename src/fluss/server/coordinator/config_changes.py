"""Changes of key-value configurations, as requests carry them: for databases, tables and the cluster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from fluss.errors import ErrorCode, FlussError
from fluss.protocol.messages import fluss_pb2 as pb


class ConfigOp(IntEnum):
    """What is done with the value, by its number on the wire."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One change of one key. Only DELETE has no value, which is then empty."""

    key: str
    op: ConfigOp
    value: str


def read_changes(messages: Iterable[pb.PbAlterConfig], *, invalid: ErrorCode) -> list[ConfigChange]:
    """Read the changes of a request; ``invalid`` is the code for a change that makes no sense by itself."""
    return [_read_change(message, invalid) for message in messages]


def _read_change(message: pb.PbAlterConfig, invalid: ErrorCode) -> ConfigChange:
    try:
        op = ConfigOp(message.op_type)
    except ValueError:
        raise FlussError(
            f"'{message.config_key}' cannot be changed by operation {message.op_type}; "
            "known are 0 set, 1 delete, 2 append and 3 subtract",
            invalid,
        ) from None
    if op is not ConfigOp.DELETE and not message.HasField("config_value"):
        raise FlussError(f"'{message.config_key}' cannot be changed without a value", invalid)
    return ConfigChange(message.config_key, op, message.config_value)


def set_and_deleted(changes: Iterable[ConfigChange]) -> tuple[dict[str, str], set[str]]:
    """Return what is set to which value and what is deleted, the last change of a key counting.

    For places that have single values only: appending and subtracting is not supported there (code -1).
    """
    values: dict[str, str] = {}
    deleted: set[str] = set()
    for change in changes:
        if change.op is ConfigOp.SET:
            values[change.key] = change.value
            deleted.discard(change.key)
        elif change.op is ConfigOp.DELETE:
            values.pop(change.key, None)
            deleted.add(change.key)
        else:
            raise FlussError(
                f"'{change.key}' is no list: it can be set and deleted, not changed by {change.op.name}",
                ErrorCode.UNKNOWN_SERVER_ERROR,
            )
    return values, deleted
