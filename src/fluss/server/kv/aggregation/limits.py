"""How large the states of one batch may become.

The changelog shows each state in full: a thousand records for one key in one batch make a thousand copies of a row that
may be large already, and texts and bitmaps grow with each of them. Without a bound a small request could use up the
memory of the server.
"""

from __future__ import annotations

from typing import Final

from fluss.errors import ErrorCode, FlussError

# The states of one column, all together. With both images of an update this stays far below the limit of a log batch.
STATES_BYTES_MAX: Final = 256 << 20


def check_states_size(byte_count: int) -> None:
    """Refuse (code 13) a batch that would make larger states than this."""
    if byte_count > STATES_BYTES_MAX:
        raise FlussError(
            f"The rows that one batch makes of its keys have more than {STATES_BYTES_MAX} bytes in one column, because "
            "each record for a key repeats what is there; write fewer records for the same key at once",
            ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
        )
