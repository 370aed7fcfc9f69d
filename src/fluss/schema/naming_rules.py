"""Which names databases, tables, partitions and columns may have.

Names become directory names, so the alphabet is small: 1 to 200 characters from ``A-Z a-z 0-9 _ -``. The prefix ``__``
belongs to the system. Column names may be any text; a few are taken by views that add columns of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from fluss.errors import ErrorCode, FlussError

NAME_CHARS_MAX: Final = 200
RESERVED_PREFIX: Final = "__"
RESERVED_COLUMN_NAMES: Final = frozenset(
    {"__offset", "__timestamp", "__bucket", "_change_type", "_log_offset", "_commit_timestamp"}
)
_FOREIGN_CHAR = re.compile(r"[^A-Za-z0-9_-]")


def name_problem(name: str) -> str | None:
    """Say what is wrong with a name that will be part of a path, or return None. The prefix is not looked at."""
    if not name:
        return "it is empty"
    if len(name) > NAME_CHARS_MAX:
        return f"it has {len(name)} characters, at most {NAME_CHARS_MAX} are allowed"
    foreign = _FOREIGN_CHAR.search(name)
    if foreign is not None:
        return f"it contains {foreign[0]!r}; only ASCII letters, digits, '_' and '-' are allowed"
    return None


def matching_name(name: str, names: Iterable[str], *, is_case_sensitive: bool) -> str | None:
    """Return which of the names is meant: the same one, or one that differs in upper and lower case only.

    None if there is none. Several that differ so, and none that is the same, are a FlussError.
    """
    known = list(names)
    if name in known:
        return name
    similar = [] if is_case_sensitive else [each for each in known if each.lower() == name.lower()]
    if len(similar) > 1:
        shown = ", ".join(f"'{each}'" for each in similar)
        raise FlussError(f"'{name}' may be one of {shown}, which differ in upper and lower case only; write it exactly")
    return similar[0] if similar else None


def new_name_problem(name: str) -> str | None:
    """Say what is wrong with a name for something new, which must also stay out of the system's names."""
    if name.startswith(RESERVED_PREFIX):
        return f"the prefix '{RESERVED_PREFIX}' is reserved"
    return name_problem(name)


def check_database_name(name: str) -> None:
    """Refuse a name that no database can have (code 16)."""
    problem = new_name_problem(name)
    if problem is not None:
        raise FlussError(f"Database name {_shown(name)} is invalid: {problem}", ErrorCode.INVALID_DATABASE_EXCEPTION)


def check_table_name(name: str) -> None:
    """Refuse a name that no table can have (code 15)."""
    problem = new_name_problem(name)
    if problem is not None:
        raise FlussError(f"Table name {_shown(name)} is invalid: {problem}", ErrorCode.INVALID_TABLE_EXCEPTION)


def check_partition_value(value: str, *, creating: bool) -> None:
    """Refuse a text that no partition value can be (code 43); only the system may create reserved ones."""
    problem = new_name_problem(value) if creating else name_problem(value)
    if problem is not None:
        raise FlussError(
            f"Partition value {_shown(value)} is invalid: {problem}", ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION
        )


def check_column_name(name: str) -> None:
    """Refuse a column name that the system uses itself (code 15)."""
    if name in RESERVED_COLUMN_NAMES:
        raise FlussError(f"Column name '{name}' is reserved; choose another one", ErrorCode.INVALID_TABLE_EXCEPTION)


def _shown(name: str) -> str:
    return repr(name if len(name) <= NAME_CHARS_MAX else name[:NAME_CHARS_MAX] + "...")
