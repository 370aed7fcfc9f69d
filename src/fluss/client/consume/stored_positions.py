"""Which positions of a consumer are stored, as far as its process knows, and which are on their way.

A position is committed only if it is not known to be stored. So what is called known must be stored for certain: a
commit that fails may be stored later, and one that is under way may be the last to be stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future

from fluss.schema.table import TableBucket


class StoredPositions:
    """Knows the stored positions of the buckets that a member reads, and the automatic commit that is under way."""

    __slots__ = ("_commit", "_known", "_under_way")

    def __init__(self) -> None:
        self._known: dict[TableBucket, int] = {}
        self._commit: Future[None] | None = None
        self._under_way: dict[TableBucket, int] = {}

    def known(self) -> dict[TableBucket, int]:
        """Return the positions that are stored."""
        return dict(self._known)

    def note(self, positions: Mapping[TableBucket, int]) -> None:
        """Take positions for stored."""
        self._known |= positions

    def not_stored(self, positions: Mapping[TableBucket, int]) -> dict[TableBucket, int]:
        """Return those that are not stored, or may be replaced by what is under way."""
        return {
            bucket: offset
            for bucket, offset in positions.items()
            if bucket in self._under_way or self._known.get(bucket) != offset
        }

    def forget(self, buckets: Iterable[TableBucket]) -> None:
        """Do not take what is stored of buckets for known, and neither what is under way."""
        for bucket in buckets:
            self._known.pop(bucket, None)
            self._under_way.pop(bucket, None)

    def clear(self) -> None:
        """Know nothing any more: the membership has ended."""
        self._known.clear()
        self._commit, self._under_way = None, {}

    def begin_commit(self, future: Future[None], positions: dict[TableBucket, int]) -> None:
        """Take positions for under way until the future is done."""
        self._commit, self._under_way = future, positions

    def is_commit_under_way(self) -> bool:
        """Tell whether a commit has begun that is not done."""
        return self._commit is not None and not self._commit.done()

    def end_commit(self) -> BaseException | None:
        """Learn what became of the commit that is done, if there is one, and return its error."""
        commit, positions = self._commit, self._under_way
        if commit is None:
            return None
        self._commit, self._under_way = None, {}
        error = commit.exception()
        if error is None:
            self._known |= positions
        else:
            # They may be stored later.
            self.forget(positions)
        return error
